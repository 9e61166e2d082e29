// A plan's run does not allocate, whatever the layout. The program's operator new counts.
#include <atomic>
#include <cstdlib>
#include <new>

#include "../api/call.h"

namespace {
std::atomic<int> allocations{0};
}  // namespace

__attribute__((noinline)) void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
__attribute__((noinline)) void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}

namespace fovea::test {
namespace {

TEST(Allocation, RunningAPlanWithInterleavedGradientsDoesNotAllocate) {
  constexpr std::int64_t kSeq = 5, kHeads = 4, kDim = 8;
  std::vector<float> qkv = Call::values(kSeq * 3 * kHeads * kDim, 1), dqkv(qkv.size());
  std::vector<float> out(kSeq * kHeads * kDim), dout = Call::values(kSeq * kHeads * kDim, 2),
                                                lse(kSeq * kHeads);
  const auto views = packed_qkv(qkv.data(), DType::f32, 1, kSeq, kHeads, kDim);
  const auto gradients = packed_qkv(dqkv.data(), DType::f32, 1, kSeq, kHeads, kDim);
  ForwardArgs forward_args;
  forward_args.params.q = views.q;
  forward_args.params.k = views.k;
  forward_args.params.v = views.v;
  forward_args.out = bshd(out.data(), DType::f32, 1, kSeq, kHeads, kDim);
  forward_args.lse = MutableTensorView(lse.data(), DType::f32, {1, kHeads, kSeq});
  ASSERT_TRUE(forward(forward_args).ok());
  BackwardArgs args;
  args.params = forward_args.params;
  args.out = forward_args.out.segments[0].tensor;
  args.lse = forward_args.lse;
  args.dout = bshd(dout.data(), DType::f32, 1, kSeq, kHeads, kDim);
  args.dq = gradients.q;
  args.dk = gradients.k;
  args.dv = gradients.v;
  PlanOptions options;
  options.num_threads = 1;
  const Result<Plan> plan = Plan::make(args, options);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  std::vector<std::byte> memory(plan->workspace_bytes() + 64);
  RunOptions run;
  run.workspace = reinterpret_cast<std::byte*>(
      (reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64);
  run.workspace_bytes = plan->workspace_bytes();
  ASSERT_TRUE(plan->run(args, run).ok());  // a job's first run notes its kernel
  const int before = allocations;
  EXPECT_GT(before, 0);
  const bool ok = plan->run(args, run).ok();
  EXPECT_EQ(allocations - before, 0);
  EXPECT_TRUE(ok);
}

}  // namespace
}  // namespace fovea::test
