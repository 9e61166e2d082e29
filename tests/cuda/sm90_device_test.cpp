// Each wrapper of what sm_90 has against a plain loop, emulated and (where there is one) on such a
// device; and the defects of kernels that the emulation must find.
#include <bit>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "contract/float_types.h"
#include "cuda/emulation.h"
#include "cuda/runtime.h"
#include "tests/cuda/sm90_device_kernels.h"

namespace fovea::cuda {
namespace {

using Halves = std::vector<std::uint16_t>;

constexpr int kSharedBytes = 65 * 1024;

struct Memory {
  Memory(Runtime& runtime, std::size_t size) : owner(runtime), bytes(size) {
    Result<void*> memory = owner.allocate(0, bytes);
    EXPECT_TRUE(memory.ok());
    data = *memory;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { EXPECT_TRUE(owner.free(0, data).ok()); }
  void from(const void* host) const { EXPECT_TRUE(owner.upload(0, data, host, bytes).ok()); }
  void to(void* host) const { EXPECT_TRUE(owner.download(0, host, data, bytes).ok()); }
  Runtime& owner;
  void* data;
  std::size_t bytes;
};

class World {
 public:
#if FOVEA_CUDA_REAL
  explicit World(bool emulated)
      : kernel_(emulated ? emulated::sm90_test_kernel : real::sm90_test_kernel),
        runtime_(emulated ? emulated_runtime() : real_runtime()) {}
#else
  explicit World(bool) : kernel_(emulated::sm90_test_kernel), runtime_(emulated_runtime()) {}
#endif
  Runtime& operator*() const { return runtime_; }

  Status launch(const char* name, std::int64_t blocks, const Sm90TestArgs& args) const {
    const Entry* entry = kernel_(name);
    EXPECT_NE(entry, nullptr) << name;
    const Result<void*> stream = runtime_.own_stream(0);
    const LaunchShape shape{blocks, kSharedBytes};
    Status status = runtime_.launch(0, *entry, shape, &args, sizeof(args), *stream);
    return status.ok() ? runtime_.synchronize(0, *stream) : status;
  }

  /// Rows [rows, columns] of 16 bits as boxes [box_rows, 64].
  TensorMap map_of(const void* data, int rows, int columns, int box_rows, bool f16) const {
    TensorBox box;
    box.data = data;
    box.element = f16 ? TensorElement::f16 : TensorElement::bf16;
    box.sizes[0] = columns;
    box.sizes[1] = rows;
    box.strides[1] = columns;
    box.strides[2] = box.strides[3] = 8;
    box.box[0] = 64;
    box.box[1] = box_rows;
    TensorMap map;
    EXPECT_TRUE(runtime_.encode(map, box).ok());
    return map;
  }

 private:
  const Entry* (*kernel_)(std::string_view name);
  Runtime& runtime_;
};

class Sm90Wrappers : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    const std::string& reason = (*world).unavailable();
    if (!reason.empty()) GTEST_SKIP() << reason;
    if (!GetParam() && (*world).devices()[0].major != 9) GTEST_SKIP() << "no sm_90";
  }
  World world{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Worlds, Sm90Wrappers,
                         FOVEA_CUDA_REAL ? testing::ValuesIn({true, false})
                                         : testing::ValuesIn({true}),
                         [](const auto& world) { return world.param ? "emulated" : "real"; });

float widen(std::uint16_t bits, bool f16) { return f16 ? to_f32(F16{bits}) : to_f32(Bf16{bits}); }

struct Product {
  Status status;
  Halves found;
  std::vector<float> wanted;
};

/// D [64, 128] = A [a_rows, 64] B, where A has fewer rows than its box: zeros. out has 60 rows.
constexpr int kRowsOfA = 61, kRowsOfOut = 60;

Product run_product(const World& world, const char* name, bool by_columns, bool f16) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto fill = [&](int count) {
    Halves x(static_cast<std::size_t>(count));
    for (std::uint16_t& h : x) h = f16 ? to_f16(normal(random)).bits : to_bf16(normal(random)).bits;
    return x;
  };
  const Halves a = fill(kRowsOfA * 64), b = fill(64 * 128);
  Product product;
  product.found.assign(static_cast<std::size_t>(kRowsOfOut) * 128, 0xFFFF);
  const Memory x(*world, a.size() * 2), y(*world, b.size() * 2),
      z(*world, product.found.size() * 2);
  x.from(a.data());
  y.from(b.data());
  z.from(product.found.data());
  Sm90TestArgs args;
  args.a = world.map_of(x.data, kRowsOfA, 64, 64, f16);
  args.b =
      by_columns ? world.map_of(y.data, 64, 128, 64, f16) : world.map_of(y.data, 128, 64, 128, f16);
  args.out = world.map_of(z.data, kRowsOfOut, 128, 16, f16);
  product.status = world.launch(name, 1, args);
  z.to(product.found.data());
  for (int i = 0; i < kRowsOfOut; ++i)
    for (int j = 0; j < 128; ++j) {
      float sum = 0;
      for (int k = 0; k < 64; ++k)
        sum += widen(a[static_cast<std::size_t>(i * 64 + k)], f16) *
               widen(b[static_cast<std::size_t>(by_columns ? k * 128 + j : j * 64 + k)], f16);
      product.wanted.push_back(sum);
    }
  return product;
}

bool agrees(const Product& product, bool f16) {
  for (std::size_t n = 0; n < product.wanted.size(); ++n) {
    const float found = widen(product.found[n], f16), wanted = product.wanted[n];
    if (!(std::abs(found - wanted) <= 0.005f * std::abs(wanted) + 0.01f)) return false;
  }
  return true;
}

TEST_P(Sm90Wrappers, products_of_boxes_stored_by_boxes) {
  for (int seed = 1; seed <= 5; ++seed) {
    emulation::set_seed(static_cast<std::uint64_t>(seed));
    for (const char* name :
         {"rows_bf16", "rows_f16", "columns_bf16", "columns_f16", "rows_registers_bf16"}) {
      const std::string_view text(name);
      const bool f16 = text.find("_f16") != std::string_view::npos;
      const Product product = run_product(world, name, text.starts_with("columns"), f16);
      EXPECT_TRUE(product.status.ok()) << name << ": " << product.status.message();
      EXPECT_TRUE(agrees(product, f16)) << name;
    }
  }
}

struct Sums {
  Status status;
  std::vector<float> found, wanted;
};
/// Weighted sums of the columns of [8 count, 64], added up by 3 blocks.
Sums run_ring(const World& world, const char* name, int count) {
  std::mt19937 random(9);
  Halves a(static_cast<std::size_t>(count) * 8 * 64);
  for (std::uint16_t& h : a) h = to_bf16(static_cast<float>(random() % 16)).bits;
  std::vector<float> weights(static_cast<std::size_t>(count) * 8);
  for (float& weight : weights) weight = static_cast<float>(random() % 4);
  Sums sums{{}, std::vector<float>(64, 1.0f), std::vector<float>(64, 1.0f)};
  const Memory x(*world, a.size() * 2), y(*world, weights.size() * sizeof(float)),
      z(*world, 64 * sizeof(float));
  x.from(a.data());
  y.from(weights.data());
  z.from(sums.found.data());
  Sm90TestArgs args;
  args.a = world.map_of(x.data, 8 * count, 64, 8, false);
  args.words = y.data;
  args.sums = z.data;
  args.count = count;
  sums.status = world.launch(name, 3, args);
  z.to(sums.found.data());
  for (std::size_t n = 0; n < a.size(); ++n)
    sums.wanted[n % 64] += 3 * weights[n / 64] * to_f32(Bf16{a[n]});
  return sums;
}

TEST_P(Sm90Wrappers, a_ring_of_stages_and_weights_in_bulk) {
  for (int seed = 1; seed <= 10; ++seed) {
    emulation::set_seed(static_cast<std::uint64_t>(seed));
    const Sums sums = run_ring(world, "ring", 13);
    EXPECT_TRUE(sums.status.ok()) << sums.status.message();
    EXPECT_EQ(sums.found, sums.wanted);
  }
}

TEST_P(Sm90Wrappers, matrices_are_stored_by_columns) {
  Halves in(256), out(256), wanted(256);
  for (std::size_t n = 0; n < in.size(); ++n) in[n] = static_cast<std::uint16_t>(n);
  for (std::size_t m = 0; m < 4; ++m)
    for (std::size_t row = 0; row < 8; ++row)
      for (std::size_t column = 0; column < 8; ++column)
        wanted[(8 * m + column) * 8 + row] = in[(row * 4 + column / 2) * 8 + 2 * m + column % 2];
  const Memory x(*world, 512), z(*world, 512);
  x.from(in.data());
  Sm90TestArgs args;
  args.words = x.data;
  args.sums = z.data;
  const Status status = world.launch("transposed", 1, args);
  EXPECT_TRUE(status.ok()) << status.message();
  z.to(out.data());
  EXPECT_EQ(out, wanted);
}

TEST_P(Sm90Wrappers, named_barriers_make_turns) {
  for (int seed = 1; seed <= 10; ++seed) {
    emulation::set_seed(static_cast<std::uint64_t>(seed));
    int word = 0;
    const Memory z(*world, sizeof(word));
    Sm90TestArgs args;
    args.sums = z.data;
    args.count = 10;
    const Status status = world.launch("turns", 1, args);
    EXPECT_TRUE(status.ok()) << status.message();
    z.to(&word);
    int wanted = 0;
    for (int n = 0; n < 20; ++n) wanted = wanted * 2 + n % 2;
    EXPECT_EQ(word, wanted);
  }
}

TEST_P(Sm90Wrappers, maps_that_the_driver_would_refuse) {
  alignas(16) static const char data[256] = {};
  const auto refused = [&](auto&& change) {
    TensorBox box;
    box.data = data;
    box.sizes[0] = 64;
    box.sizes[1] = 4;
    box.strides[1] = 64;
    box.strides[2] = box.strides[3] = 8;
    box.box[0] = 64;
    change(box);
    TensorMap map;
    return (*world).encode(map, box).code() == StatusCode::internal;
  };
  EXPECT_TRUE(refused([](TensorBox& box) { box.data = data + 2; }));
  EXPECT_TRUE(refused([](TensorBox& box) { box.strides[1] = 65; }));
  EXPECT_TRUE(refused([](TensorBox& box) { box.strides[2] = 0; }));
  EXPECT_TRUE(refused([](TensorBox& box) { box.sizes[3] = 0; }));
  EXPECT_TRUE(refused([](TensorBox& box) { box.box[0] = 32; }));
  EXPECT_TRUE(refused([](TensorBox& box) { box.box[1] = 257; }));
}

// Defects.

const World& emulated_world() {
  static const World world(true);
  return world;
}

/// Of 20 seeds, how many end with an error or another result.
int seeds_that_see(const char* name, bool by_columns = false) {
  int seen = 0;
  for (int seed = 1; seed <= 20; ++seed) {
    emulation::set_seed(static_cast<std::uint64_t>(seed));
    const Product product = run_product(emulated_world(), name, by_columns, false);
    seen += !product.status.ok() || !agrees(product, false);
  }
  return seen;
}
void expect_error(const char* name, std::initializer_list<const char*> parts) {
  emulation::set_seed(1);
  const Product product = run_product(emulated_world(), name, false, false);
  EXPECT_EQ(product.status.code(), StatusCode::internal) << name;
  for (const char* part : parts)
    EXPECT_NE(product.status.message().find(part), std::string::npos) << product.status.message();
  EXPECT_TRUE(agrees(run_product(emulated_world(), "rows_bf16", false, false), false));
}

TEST(Sm90EmulationFinds, a_wait_for_the_wrong_phase) {
  EXPECT_GE(seeds_that_see("wrong_phase"), 18);
  int seen = 0;
  for (int seed = 1; seed <= 20; ++seed) {
    emulation::set_seed(static_cast<std::uint64_t>(seed));
    const Sums sums = run_ring(emulated_world(), "ring_of_one_phase", 13);
    seen += !sums.status.ok() || sums.found != sums.wanted;
  }
  EXPECT_EQ(seen, 20);
}
TEST(Sm90EmulationFinds, bytes_that_nobody_announces_or_that_do_not_come) {
  expect_error("missing_arrive", {"stuck", "128 wait line", "1 of 1 arrivals and -24576 bytes"});
  expect_error("wrong_bytes", {"stuck", "0 of 1 arrivals and 16 bytes missing"});
  expect_error("too_many_arrivals", {"once more than it counts"});
}
TEST(Sm90EmulationFinds, a_missing_fence) {
  expect_error("missing_fence", {"without a fence since"});
  expect_error("missing_product_fence", {"without a fence since its last wait"});
}
TEST(Sm90EmulationFinds, a_stage_that_is_released_too_early) {
  EXPECT_GE(seeds_that_see("early_release"), 15);
  int seen = 0;
  for (int seed = 1; seed <= 20; ++seed) {
    emulation::set_seed(static_cast<std::uint64_t>(seed));
    const Sums sums = run_ring(emulated_world(), "ring_without_empty", 13);
    seen += !sums.status.ok() || sums.found != sums.wanted;
  }
  EXPECT_GE(seen, 18);
}
TEST(Sm90EmulationFinds, results_used_before_they_are_there) {
  EXPECT_GE(seeds_that_see("early_use"), 15);
  EXPECT_GE(seeds_that_see("missing_read_wait"), 15);
}
TEST(Sm90EmulationFinds, wrong_descriptors) {
  EXPECT_EQ(seeds_that_see("shifted_operand"), 20);
  EXPECT_EQ(seeds_that_see("wrong_panel", true), 20);
  expect_error("other_operand", {"another product than another warp"});
}
TEST(Sm90EmulationFinds, named_barriers_of_two_sizes) {
  const Status status = emulated_world().launch("named_barriers_of_two_sizes", 1, {});
  EXPECT_EQ(status.code(), StatusCode::internal);
  EXPECT_NE(status.message().find("threads while others are there for"), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace fovea::cuda
