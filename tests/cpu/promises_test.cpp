// What the CPU kernels promise beyond right results: the same bits for any number of threads,
// little memory, the caller's floating-point mode left alone.
#include <algorithm>
#include <cstdint>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "tests/cpu/dense_call.h"

namespace fovea::test {
namespace {

std::vector<DenseCall> sizeable_calls() {
  std::vector<DenseCall> calls;
  for (const auto& band :
       {std::optional<Band>(), std::optional<Band>(Band::causal(Anchor::top_left)),
        std::optional<Band>(Band::window(Anchor::bottom_right, 200, 50))}) {
    DenseCall call(3, 600, 800, 40, 24);
    call.band = band;
    calls.push_back(call);
  }
  return calls;
}

TEST(Promises, the_number_of_threads_changes_no_bit) {
  for (const DenseCall& call : sizeable_calls()) {
    for_each_prefix([&](const std::string& prefix) {
      const DenseResults once = call.run(prefix, 1);
      for (const int threads : {2, 3, 8}) {
        const DenseResults again = call.run(prefix, threads);
        EXPECT_EQ(once.out, again.out);
        EXPECT_EQ(once.lse, again.lse);
        EXPECT_EQ(once.dq, again.dq);
        EXPECT_EQ(once.dk, again.dk);
        EXPECT_EQ(once.dv, again.dv);
      }
    });
  }
}

TEST(Promises, a_head_alone_gives_the_bits_that_it_gives_among_others) {
  const DenseCall all(3, 300, 200, 32, 32);
  DenseCall alone(1, 300, 200, 32, 32);
  alone.q.assign(all.q.begin() + 300 * 32, all.q.begin() + 600 * 32);
  alone.k.assign(all.k.begin() + 200 * 32, all.k.begin() + 400 * 32);
  alone.v.assign(all.v.begin() + 200 * 32, all.v.begin() + 400 * 32);
  for_each_prefix([&](const std::string& prefix) {
    const DenseResults some = all.run(prefix), one = alone.run(prefix);
    EXPECT_TRUE(std::equal(one.out.begin(), one.out.end(), some.out.begin() + 300 * 32));
    EXPECT_TRUE(std::equal(one.lse.begin(), one.lse.end(), some.lse.begin() + 300));
  });
}

TEST(Promises, scratch_of_a_worker_is_at_most_8_mb_beyond_one_dq) {
  constexpr std::int64_t kMost = std::int64_t{8} << 20;
  constexpr std::int64_t kHeads = 8, kLen = 8192;
  // Plans look at addresses and never read them.
  const auto fake = [](std::uintptr_t n) { return reinterpret_cast<float*>(n << 40); };
  for (const std::int64_t dim : {1, 64, 128, 200, 256, 512}) {
    const auto view = [&](std::uintptr_t n, std::int64_t step) {
      const std::int64_t row = dim * step;
      return MutableTensorView(fake(n), DType::f32, {1, kHeads, kLen, dim},
                               {kHeads * kLen * row, kLen * row, row, step});
    };
    AttentionParams params;
    params.q = view(1, 1);
    params.k = view(2, 1);
    params.v = view(3, 1);
    const TensorView lse(fake(4), DType::f32, {1, kHeads, kLen});
    for (const int threads : {1, 2, 16}) {
      PlanOptions options;
      options.num_threads = threads;
      options.choice.backend = "flash";
      const auto forward_plan = Plan::make(ForwardArgs{params, view(5, 1), {}}, options);
      ASSERT_TRUE(forward_plan.ok()) << forward_plan.status().message();
      EXPECT_LE(static_cast<std::int64_t>(forward_plan->workspace_bytes()), threads * kMost);
      for (const std::int64_t step : {1, 2}) {  // 2: dq cannot take its own sums
        BackwardArgs args;
        args.params = params;
        args.out = view(5, 1);
        args.lse = lse;
        args.dout = view(6, 1);
        args.dq = view(7, step);
        args.dk = view(8, 1);
        args.dv = view(9, 1);
        const auto plan = Plan::make(args, options);
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        const std::int64_t rows = kHeads * kLen * 4;  // delta and a little more: O(q_len)
        const std::int64_t one_dq = step == 1 ? 0 : rows * dim;
        EXPECT_LE(static_cast<std::int64_t>(plan->workspace_bytes()),
                  threads * kMost + one_dq + 2 * rows);
      }
    }
  }
}

TEST(Promises, scores_that_no_memory_holds_are_out_of_memory) {
  // 2^64 scores; nothing is read before the workspace is there.
  constexpr std::int64_t kLen = std::int64_t{1} << 32;
  const auto view = [](std::uintptr_t n) {
    return MutableTensorView(reinterpret_cast<float*>(n << 40), DType::f32, {1, 1, kLen, 1});
  };
  AttentionParams params;
  params.q = view(1);
  params.k = view(2);
  params.v = view(3);
  const MutableTensorView lse(view(4).data, DType::f32, {1, 1, kLen});
  PlanOptions options;
  options.num_threads = 1;
  options.choice.backend = "unfused";
  const ForwardArgs forward_args{params, view(5), lse};
  const auto forward_plan = Plan::make(forward_args, options);
  ASSERT_TRUE(forward_plan.ok()) << forward_plan.status().message();
  ASSERT_GT(forward_plan->workspace_bytes(), std::size_t{1} << 60);
  EXPECT_EQ(forward_plan->run(forward_args).code(), StatusCode::out_of_memory);
  BackwardArgs args;
  args.params = params;
  args.out = view(5);
  args.lse = lse;
  args.dout = view(6);
  args.dq = view(7);
  const auto backward_plan = Plan::make(args, options);
  ASSERT_TRUE(backward_plan.ok()) << backward_plan.status().message();
  ASSERT_GT(backward_plan->workspace_bytes(), std::size_t{1} << 60);
  EXPECT_GT(backward_plan->report().workspace_bytes, 0);
  EXPECT_EQ(backward_plan->run(args).code(), StatusCode::out_of_memory);
}

#if defined(__SSE__)
TEST(Promises, the_callers_floating_point_mode_is_put_back) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x2000u);  // round down
  const DenseCall call(1, 70, 70, 8, 8);
  for_each_prefix([&](const std::string& prefix) {
    (void)call.run(prefix, 1);
    EXPECT_EQ(_mm_getcsr() & 0xffc0u, (before | 0x2000u) & 0xffc0u);
  });
  _mm_setcsr(before);
}
#endif

}  // namespace
}  // namespace fovea::test
