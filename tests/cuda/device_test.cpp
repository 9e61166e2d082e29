// Each device wrapper against a plain loop, emulated and (where there is one) on a device; and the
// defects of kernels that the emulation must find.
#include <bit>
#include <cmath>
#include <cstring>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "contract/elements.h"
#include "contract/float_types.h"
#include "cuda/emulation.h"
#include "cuda/runtime.h"
#include "tests/cuda/device_kernels.h"

namespace fovea::cuda {
namespace {

using Words = std::vector<std::uint32_t>;

Words random_floats(int count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Words words;
  for (int n = 0; n < count; ++n) words.push_back(std::bit_cast<std::uint32_t>(normal(random)));
  return words;
}

float as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// A device, emulated or not, and what a kernel of the tests does there.
class World {
 public:
#if FOVEA_CUDA_REAL
  explicit World(bool emulated)
      : kernel_(emulated ? emulated::device_test_kernel : real::device_test_kernel),
        runtime_(emulated ? emulated_runtime() : real_runtime()) {}
#else
  explicit World(bool) : kernel_(emulated::device_test_kernel), runtime_(emulated_runtime()) {}
#endif

  Runtime& operator*() const { return runtime_; }

  /// Runs a kernel; `out` goes there and comes back.
  template <class T>
  Status run(const char* name, LaunchShape shape, DeviceTestArgs args, const std::vector<T>& a,
             const std::vector<T>& b, std::vector<T>& out) const {
    const Entry* entry = kernel_(name);
    EXPECT_NE(entry, nullptr) << name;
    const Buffer x(runtime_, a), y(runtime_, b), z(runtime_, out);
    args.a = x.data;
    args.b = y.data;
    args.out = z.data;
    const Result<void*> stream = runtime_.own_stream(0);
    EXPECT_TRUE(stream.ok());
    Status status = runtime_.launch(0, *entry, shape, &args, sizeof(args), *stream);
    if (!status.ok()) return status;
    status = runtime_.synchronize(0, *stream);
    if (!status.ok()) return status;
    return runtime_.download(0, out.data(), z.data, out.size() * sizeof(T));
  }
  Status run(const char* name, LaunchShape shape, const Words& a, Words& out) const {
    return run(name, shape, {}, a, {}, out);
  }

 private:
  struct Buffer {
    template <class T>
    Buffer(Runtime& runtime, const std::vector<T>& from) : owner(runtime) {
      Result<void*> memory = owner.allocate(0, from.size() * sizeof(T));
      EXPECT_TRUE(memory.ok());
      data = *memory;
      EXPECT_TRUE(owner.upload(0, data, from.data(), from.size() * sizeof(T)).ok());
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { EXPECT_TRUE(owner.free(0, data).ok()); }
    Runtime& owner;
    void* data;
  };

  const Entry* (*kernel_)(std::string_view name);
  Runtime& runtime_;
};

class DeviceWrappers : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    const std::string& reason = (*world).unavailable();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  World world{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Worlds, DeviceWrappers,
                         FOVEA_CUDA_REAL ? testing::ValuesIn({true, false})
                                         : testing::ValuesIn({true}),
                         [](const auto& world) { return world.param ? "emulated" : "real"; });

// The order in which the hardware adds is its own.
void expect_close(float found, double wanted, double scale) {
  EXPECT_NEAR(static_cast<double>(found), wanted, 1e-6 * scale);
}

template <class Read>
void check_product(const World& world, const char* name, int depth, Read read, bool halves) {
  Words a = random_floats(16 * depth, 1), b = random_floats(depth * 8, 2);
  Words out = random_floats(16 * 8, 3);
  const Words before = out;
  std::vector<double> wanted;
  // Sixteen-bit operands lie two to a word.
  const auto narrow = [&](const Words& from) {
    Words to(from.size() / 2);
    for (std::size_t n = 0; n < to.size(); ++n)
      to[n] = (from[2 * n] & 0xFFFFu) | from[2 * n + 1] << 16;
    return to;
  };
  if (halves)
    for (Words* words : {&a, &b})
      for (std::uint32_t& word : *words)
        word = std::string_view(name).find("f16_") != std::string_view::npos &&
                       std::string_view(name).find("bf16") == std::string_view::npos
                   ? to_f16(as_float(word)).bits
                   : to_bf16(as_float(word)).bits;
  const auto at = [](const Words& words, int n) { return words[static_cast<std::size_t>(n)]; };
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 8; ++j) {
      double sum = static_cast<double>(as_float(at(before, i * 8 + j)));
      for (int k = 0; k < depth; ++k)
        sum += static_cast<double>(read(at(a, i * depth + k))) *
               static_cast<double>(read(at(b, k * 8 + j)));
      wanted.push_back(sum);
    }
  ASSERT_TRUE(world.run(name, {1}, {}, halves ? narrow(a) : a, halves ? narrow(b) : b, out).ok());
  for (std::size_t n = 0; n < out.size(); ++n) expect_close(as_float(out[n]), wanted[n], 8);
}

TEST_P(DeviceWrappers, multiply_bf16) {
  check_product(
      world, "product_bf16_entry", 16, [](std::uint32_t x) { return as_float(x << 16); }, true);
}
TEST_P(DeviceWrappers, multiply_f16) {
  check_product(
      world, "product_f16_entry", 16,
      [](std::uint32_t x) { return to_f32(F16{static_cast<std::uint16_t>(x)}); }, true);
}
TEST_P(DeviceWrappers, multiply_tf32_ignores_low_bits) {
  check_product(
      world, "product_tf32", 8, [](std::uint32_t x) { return as_float(x & ~0x1FFFu); }, false);
}

/// D + A B of tf32, where all of B is 1 and row i of A begins with terms(i), and all of row i of D
/// is starts(i); the first column of the result.
template <class Starts, class Terms>
std::vector<float> sums_of(const World& world, Starts&& starts, Terms&& terms) {
  Words a(16 * 8), b(8 * 8, std::bit_cast<std::uint32_t>(1.0f)), out;
  for (std::size_t i = 0; i < 16; ++i) {
    std::size_t k = 0;
    for (const float term : terms(static_cast<int>(i)))
      a[i * 8 + k++] = std::bit_cast<std::uint32_t>(term);
    out.insert(out.end(), 8, std::bit_cast<std::uint32_t>(starts(static_cast<int>(i))));
  }
  EXPECT_TRUE(world.run("product_tf32", {1}, {}, a, b, out).ok());
  std::vector<float> column;
  for (std::size_t i = 0; i < 16; ++i) column.push_back(as_float(out[i * 8]));
  return column;
}

TEST_P(DeviceWrappers, products_round_sums_towards_zero) {
  const auto sign = [](int i) { return i % 2 == 0 ? 1.0f : -1.0f; };
  const std::vector<float> sums =
      sums_of(world, sign, [&](int i) { return std::vector{0x1.8p-24f * sign(i)}; });
  for (int i = 0; i < 16; ++i) EXPECT_EQ(sums[static_cast<std::size_t>(i)], sign(i));
}
TEST_P(DeviceWrappers, products_keep_bits_below_the_largest_term) {
  const auto small = [](int i) { return std::ldexp(1.0f, -16 - i); };
  const std::vector<float> sums = sums_of(
      world, [](int) { return 0.0f; },
      [&](int i) {
        return std::vector{1.0f, -1.0f, small(i)};
      });
  int kept = 15;
  for (int i = 0; i < 16; ++i) {
    const float sum = sums[static_cast<std::size_t>(i)];
    EXPECT_TRUE(sum == 0 || sum == small(i)) << sum;
    if (sum != 0) kept = 16 + i;
  }
  std::cout << "a term of 2^-" << kept << " beside one of 1 counts\n";
  if (GetParam())
    EXPECT_EQ(kept, 25) << "as emulation_operations.cpp says";
  else
    EXPECT_GE(kept, 23);
}

TEST_P(DeviceWrappers, load_matrices) {
  // 32 rows of 8 elements, each its own number.
  Words a(32 * 4);
  for (std::uint32_t n = 0; n < a.size(); ++n) a[n] = 2 * n | (2 * n + 1) << 16;
  Words plain(128), transposed(128);
  const LaunchShape shape = {1, 32 * 24 * 2};
  ASSERT_TRUE(world.run("load", shape, a, plain).ok());
  ASSERT_TRUE(world.run("load_transposed", shape, a, transposed).ok());
  for (std::uint32_t lane = 0; lane < 32; ++lane)
    for (std::uint32_t m = 0; m < 4; ++m) {
      const std::uint32_t g = lane / 4, t = lane % 4;
      const auto element = [&](std::uint32_t row, std::uint32_t column) {
        return (8 * m + row) * 8 + column;
      };
      EXPECT_EQ(plain[lane * 4 + m], element(g, 2 * t) | element(g, 2 * t + 1) << 16);
      EXPECT_EQ(transposed[lane * 4 + m], element(2 * t, g) | element(2 * t + 1, g) << 16);
    }
}

TEST_P(DeviceWrappers, shuffles_and_votes) {
  Words a = random_floats(128, 4);
  for (std::size_t n = 32; n < 64; ++n) a[n] &= 0x7FFFFFFFu;  // a warp of positive numbers
  for (std::size_t n = 64; n < 96; ++n) a[n] |= 0x80000000u;  // and one of negative ones
  Words out(128 * 8);
  ASSERT_TRUE(world.run("exchange", {1}, a, out).ok());
  for (std::size_t n = 0; n < 128; ++n) {
    const std::size_t lane = n % 32, warp = n - lane;
    const std::uint32_t* found = &out[n * 8];
    std::uint32_t votes = 0;
    for (std::size_t i = 0; i < 32; ++i) votes |= as_float(a[warp + i]) > 0 ? 1u << i : 0u;
    EXPECT_EQ(found[0], a[warp + (lane * 7 + 3) % 32]);
    EXPECT_EQ(found[1], a[warp + (lane ^ 5)]);
    EXPECT_EQ(found[2], a[warp + 31 - lane]);
    EXPECT_EQ(found[3], votes);
    EXPECT_EQ(as_float(found[4]), votes != 0 ? 1.0f : 0.0f);
    EXPECT_EQ(as_float(found[5]), votes == ~0u ? 1.0f : 0.0f);
    EXPECT_EQ(as_float(found[6]), static_cast<float>(n / 32 * 100 + lane));
    EXPECT_EQ(as_float(found[7]), 128.0f);
  }
}

TEST_P(DeviceWrappers, asynchronous_copies_fill_with_zeros) {
  // Sources beyond count do not exist.
  const Words a = random_floats(200 * 4, 5);
  Words out(256 * 4);
  ASSERT_TRUE(world.run("copy", {3, 256 * 16}, {.count = 200}, a, {}, out).ok());
  for (std::size_t n = 0; n < out.size(); ++n) EXPECT_EQ(out[n], n < a.size() ? a[n] : 0u) << n;
}

TEST_P(DeviceWrappers, atomics_and_turns) {
  Words out(8 + 5);
  ASSERT_TRUE(world.run("add", {5}, {}, out).ok());
  EXPECT_EQ(as_float(out[0]), 5 * 64 * 0.5f);
  EXPECT_EQ(out[1], 5u * 64 * 63 / 2);
  EXPECT_EQ(out[2], 0u);
  EXPECT_EQ(out[3], 5u * 64 * 2);
  EXPECT_EQ(out[4], 5u);
  EXPECT_EQ(as_float(out[6]), 5 * 64 * 0.25f);
  EXPECT_EQ(as_float(out[7]), 5 * 64 * -2.0f);
  for (std::uint32_t block = 0; block < 5; ++block) EXPECT_EQ(out[8 + block], block);
}

TEST_P(DeviceWrappers, numbers) {
  Words a = random_floats(128, 6);
  a[0] = 0;
  a[1] = 0x80000000u;
  a[2] = std::bit_cast<std::uint32_t>(-INFINITY);
  a[3] = std::bit_cast<std::uint32_t>(INFINITY);
  a[4] = std::bit_cast<std::uint32_t>(-127.5f);
  a[5] = 0x3F801000u;  // halfway between two tf32 numbers, two bf16 numbers
  a[6] = 0x3F808000u;
  a[7] = std::bit_cast<std::uint32_t>(1e-7f);  // subnormal in f16
  const Words b = {1, 2, 3, 4};
  const auto close = [](std::uint32_t found, float wanted) {
    const double got = static_cast<double>(as_float(found)), want = static_cast<double>(wanted);
    if (std::isnan(want)) return std::isnan(got);
    return got == want || std::abs(got - want) <= 1e-6 * std::abs(want) + 1e-7;
  };
  for (const bool bf16 : {true, false}) {
    Words out(128 * 16);
    ASSERT_TRUE(world.run(bf16 ? "numbers_bf16" : "numbers_f16", {1}, {}, a, b, out).ok());
    for (std::size_t n = 0; n < a.size(); ++n) {
      const float x = as_float(a[n]);
      const std::uint32_t* found = &out[n * 16];
      const std::uint32_t low = bf16 ? to_bf16(x).bits : to_f16(x).bits;
      const std::uint32_t high = bf16 ? to_bf16(-x).bits : to_f16(-x).bits;
      const float value = bf16 ? to_f32(to_bf16(x)) : to_f32(to_f16(x));
      EXPECT_EQ(found[0], low | high << 16) << x;
      EXPECT_EQ(as_float(found[1]), value);
      EXPECT_EQ(as_float(found[2]), -value);
      const std::uint32_t rounded = std::isinf(x) ? a[n] : (a[n] + 0x1000u) & ~0x1FFFu;
      EXPECT_EQ(found[3] & ~0x1FFFu, rounded);
      EXPECT_PRED2(close, found[4], n == 4 ? 0.0f : std::exp2(x)) << x;
      EXPECT_PRED2(close, found[5], std::log2(x)) << x;
      EXPECT_PRED2(close, found[6], std::tanh(x)) << x;
      EXPECT_PRED2(close, found[7], 1 / std::sqrt(x)) << x;
      EXPECT_EQ(as_float(found[8]), std::fma(x, x, -1.0f)) << x;
      for (std::uint32_t i = 0; i < 4; ++i) EXPECT_EQ(found[9 + i], i + 1);
    }
  }
}

TEST_P(DeviceWrappers, elements_of_every_type) {
  using plain::Element;
  const std::pair<Element, DType> types[] = {{Element::f32, DType::f32},
                                             {Element::f16, DType::f16},
                                             {Element::bf16, DType::bf16},
                                             {Element::f64, DType::f64}};
  for (const auto& [element, dtype] : types) {
    std::vector<double> a(1000), out(1000), wanted(1000);
    for (int n = 0; n < 1000; ++n) {
      store_element(a.data(), dtype, n, 0.25 * n - 30);
      store_element(wanted.data(), dtype, n, load_element(a.data(), dtype, n) + 1);
    }
    const DeviceTestArgs args = {.count = 1000, .element = element};
    ASSERT_TRUE(world.run("elements", {3}, args, a, {}, out).ok());
    EXPECT_EQ(std::memcmp(out.data(), wanted.data(), out.size() * sizeof(double)), 0);
  }
}

TEST_P(DeviceWrappers, barriers_and_threads_that_end_early) {
  for (int seed = 1; seed <= 20; ++seed) {
    emulation::set_seed(static_cast<std::uint64_t>(seed));
    const Words a = random_floats(128, 7);
    Words reversed(128), sums(128), ends(128);
    ASSERT_TRUE(world.run("reverse", {1, 512}, a, reversed).ok());
    ASSERT_TRUE(world.run("rounds", {1, 512}, a, sums).ok());
    ASSERT_TRUE(world.run("early_end", {1}, a, ends).ok());
    for (std::size_t n = 0; n < 128; ++n) {
      EXPECT_EQ(reversed[n], a[127 - n]);
      EXPECT_EQ(as_float(sums[n]), static_cast<float>(6000 + 4 * ((n + 32) % 128)));
      EXPECT_EQ(as_float(ends[n]), n < 32 ? 0.0f : 1.0f);
    }
  }
}

TEST_P(DeviceWrappers, no_blocks_are_no_launch) {
  Words out(4);
  EXPECT_TRUE(world.run("early_end", {0}, {}, out).ok());
  EXPECT_EQ(world.run("early_end", {-1}, {}, out).code(), StatusCode::internal);
  EXPECT_EQ(world.run("early_end", {std::int64_t{1} << 31}, {}, out).code(), StatusCode::internal);
  EXPECT_EQ(world.run("early_end", {1, std::size_t{1} << 30}, {}, out).code(),
            StatusCode::internal);
}

TEST_P(DeviceWrappers, marks_are_spent_when_they_are_complete) {
  for (int round = 0; round < 3; ++round) {
    Result<Mark> mark = (*world).record(0, *(*world).own_stream(0));
    ASSERT_TRUE(mark.ok());
    ASSERT_TRUE((*world).synchronize(0, *(*world).own_stream(0)).ok());
    const Result<bool> done = (*world).completed(*mark);
    ASSERT_TRUE(done.ok());
    EXPECT_TRUE(*done);
    EXPECT_EQ(mark->event, nullptr);
  }
  const Result<bool> capturing = (*world).capturing(0, *(*world).own_stream(0));
  ASSERT_TRUE(capturing.ok());
  EXPECT_FALSE(*capturing);
}

// Defects.

const World& emulated_world() {
  static const World world(true);
  return world;
}

/// Of 20 seeds, how many give another result than the kernel without the defect.
int seeds_that_see(const char* faulty, const char* right, LaunchShape shape, std::int64_t count) {
  const Words a = random_floats(1024, 8);
  int seen = 0;
  for (int seed = 1; seed <= 20; ++seed) {
    emulation::set_seed(static_cast<std::uint64_t>(seed));
    Words wanted(1024), found(1024);
    EXPECT_TRUE(emulated_world().run(right, shape, {.count = count}, a, {}, wanted).ok());
    EXPECT_TRUE(emulated_world().run(faulty, shape, {.count = count}, a, {}, found).ok());
    seen += found != wanted;
  }
  return seen;
}

TEST(EmulationFinds, missing_barrier) {
  EXPECT_GE(seeds_that_see("reverse_without_barrier", "reverse", {1, 512}, 0), 15);
}
TEST(EmulationFinds, missing_second_barrier) {
  EXPECT_GE(seeds_that_see("rounds_with_one_barrier", "rounds", {1, 512}, 0), 10);
}
TEST(EmulationFinds, wait_for_too_few_groups) {
  EXPECT_EQ(seeds_that_see("copy_too_few", "copy", {1, 256 * 16}, 256), 20);
}

TEST(EmulationFinds, the_same_again_with_the_same_seed) {
  Words first(128), second(128);
  const Words a = random_floats(128, 9);
  for (Words* out : {&first, &second}) {
    emulation::set_seed(11);
    ASSERT_TRUE(emulated_world().run("reverse_without_barrier", {1, 512}, a, *out).ok());
  }
  EXPECT_EQ(first, second);
}

void expect_error(const char* name, LaunchShape shape, std::initializer_list<const char*> parts) {
  const Words a(1024);
  Words out(1024);
  const Status status = emulated_world().run(name, shape, a, out);
  EXPECT_EQ(status.code(), StatusCode::internal) << name;
  for (const char* part : parts)
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  // The device still works.
  EXPECT_TRUE(emulated_world().run("reverse", {1, 512}, a, out).ok());
}

TEST(EmulationFinds, index_beyond_shared_array) {
  expect_error("beyond_end", {2, 512}, {"[beyond_end] block 0, thread 127", "index 128", "128"});
}
TEST(EmulationFinds, array_beyond_shared_memory) {
  expect_error("beyond_launch", {2, 1024}, {"128 x 4 bytes at 1024", "1024 bytes"});
}
TEST(EmulationFinds, misaligned_matrix_row) {
  expect_error("load_misaligned", {1, 32 * 24 * 2}, {"8 bytes beyond a multiple of 16"});
}
TEST(EmulationFinds, barrier_in_branch) {
  expect_error("barrier_in_branch", {1}, {"is at the barrier of device_kernels.cu:"});
}
TEST(EmulationFinds, barrier_that_some_lanes_miss) {
  expect_error("barrier_for_some_lanes", {1},
               {"stuck", "2 wait at the barrier", "31 of warp 1 wait at a warp barrier"});
}
TEST(EmulationFinds, warp_operation_without_all_lanes) {
  expect_error("lanes_that_have_ended", {1}, {"a warp barrier"});
  expect_error("lanes_at_different_operations", {1}, {"a vote", "a warp barrier"});
}
TEST(EmulationFinds, turn_that_never_comes) {
  expect_error("turn_that_never_comes", {1}, {"waits for a value"});
}

}  // namespace
}  // namespace fovea::cuda
