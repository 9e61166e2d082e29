// What the decode kernels promise beyond being right.
#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "tests/cpu/dense_call.h"

namespace fovea::test {
namespace {

/// f("cpu.avx512_decode.forward", "cpu.avx512") for each instruction set of this machine.
template <class F>
void for_each_decode_kernel(F&& f) {
  int found = 0;
  for (const KernelInfo& kernel : kernels()) {
    const std::size_t end = kernel.id.find("_decode.");
    if (end == std::string::npos || !kernel.available) continue;
    SCOPED_TRACE(kernel.id);
    f(kernel.id, kernel.id.substr(0, end));
    ++found;
  }
  EXPECT_GE(found, 1);
}

CallOptions chosen(const std::string& kernel, int threads = 0) {
  CallOptions options;
  options.plan.choice.kernel = kernel;
  options.plan.num_threads = threads;
  return options;
}

DenseResults decoded(const DenseCall& call, const std::string& kernel, int threads = 0) {
  DenseResults r;
  throw_if_error(forward(call.forward_args(r), chosen(kernel, threads)));
  return r;
}

TEST(Decode, chunks_are_merged_in_one_order_whatever_the_number_of_threads) {
  const DenseCall call(3, 2, 4500, 40, 24);
  for_each_decode_kernel([&](const std::string& kernel, const std::string&) {
    const DenseResults once = decoded(call, kernel, 1);
    for (const int threads : {2, 3, 8}) {
      const DenseResults again = decoded(call, kernel, threads);
      EXPECT_EQ(once.out, again.out);
      EXPECT_EQ(once.lse, again.lse);
    }
  });
}

TEST(Decode, a_head_alone_gives_the_bits_that_it_gives_among_others) {
  const DenseCall all(40, 1, 3000, 32, 32);
  DenseCall alone(1, 1, 3000, 32, 32);
  const auto second = [](const std::vector<float>& list, std::int64_t size) {
    return std::vector<float>(list.begin() + size, list.begin() + 2 * size);
  };
  alone.q = second(all.q, 32);
  alone.k = second(all.k, 3000 * 32);
  alone.v = second(all.v, 3000 * 32);
  for_each_decode_kernel([&](const std::string& kernel, const std::string&) {
    const DenseResults some = decoded(all, kernel), one = decoded(alone, kernel);
    EXPECT_EQ(one.out, second(some.out, 32));
    EXPECT_EQ(one.lse.front(), some.lse[1]);
  });
}

// Backward takes P from lse: scores that the two directions round differently would show in dv at
// logits of thousands. Where nearly all of a row's weight lies on one key, dq and dk are what
// cancellation leaves of almost nothing.
TEST(Decode, its_results_fit_the_flash_backward_kernels_at_large_logits) {
  constexpr double kTolerance = 2e-6;
  for (const double scale : {0.1, 30.0, 1000.0}) {
    DenseCall call(2, 4, 700, 100, 40);
    call.scale = scale;
    for_each_decode_kernel([&](const std::string& kernel, const std::string& prefix) {
      DenseResults mixed = decoded(call, kernel);
      throw_if_error(backward(call.backward_args(mixed), chosen(prefix + ".backward")));
      const DenseResults pure = call.run(prefix);
      if (scale < 1) return expect_near(mixed, pure, kTolerance);
      EXPECT_LE(relative_error(mixed.lse, pure.lse), kTolerance);
      EXPECT_LE(relative_error(mixed.dv, pure.dv), kTolerance);
    });
  }
}

}  // namespace
}  // namespace fovea::test
