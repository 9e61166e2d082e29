// What a run costs the host, and devices beyond the first.
#include <chrono>
#include <iostream>

#include "gpu.h"

namespace fovea::gpu {
namespace {

/// Median of 1,000 runs in microseconds, the queue never full.
template <class Args>
double median_run_us(const Plan& plan, const Args& args, const RunOptions& options) {
  constexpr int kRuns = 1000, kQueued = 50;
  std::vector<double> times;
  for (int run = 0; run < kRuns; ++run) {
    if (run % kQueued == 0) throw_if_error(synchronize(kGpu));
    const auto start = std::chrono::steady_clock::now();
    throw_if_error(plan.run(args, options));
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
            .count());
  }
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return times[kRuns / 2];
}

class HostTime : public OnGpu {};

TEST_F(HostTime, a_reused_plan) {
  DenseCall call(kGpu, DType::bf16, 1, 1, 128, 128, 64);
  call.upload_random(1);
  const Plan forward_plan = Plan::make(call.forward_args()).value();
  const Plan backward_plan = Plan::make(call.backward_args()).value();
  const Workspace forward_memory(forward_plan, kGpu), backward_memory(backward_plan, kGpu);
  const double forward_us =
      median_run_us(forward_plan, call.forward_args(), forward_memory.options);
  const double backward_us =
      median_run_us(backward_plan, call.backward_args(), backward_memory.options);
  throw_if_error(synchronize(kGpu));
  std::cout << "host time of a run: forward " << forward_us
            << " us, backward, which is several launches, " << backward_us << " us\n";
  EXPECT_LE(forward_us, 5.0);
}

TEST_F(HostTime, a_run_does_not_wait_for_the_device) {
  DenseCall call(kGpu, DType::bf16, 1, 16, 8192, 8192, 128);
  call.upload_random(1);
  const Plan plan = Plan::make(call.forward_args()).value();
  const Workspace memory(plan, kGpu);
  throw_if_error(plan.run(call.forward_args(), memory.options));
  throw_if_error(synchronize(kGpu));
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (int n = 0; n < 10; ++n) throw_if_error(plan.run(call.forward_args(), memory.options));
  const auto queued = Clock::now() - start;
  throw_if_error(synchronize(kGpu));
  EXPECT_LT(queued, (Clock::now() - start) / 4);
}

TEST_F(OnGpu, second_device_gives_what_the_cpu_gives) {
  const Device second{DeviceType::cuda, 1};
  if (const std::string reason = absence_of(second); !reason.empty()) GTEST_SKIP() << reason;
  std::vector<std::vector<float>> results[2];
  for (int n = 0; n < 2; ++n) {
    const Device device = n == 0 ? kCpu : second;
    DenseCall call(device, DType::f32, 2, 3, 100, 150, 64);
    call.upload_random(1);
    throw_if_error(forward(call.forward_args()));
    throw_if_error(backward(call.backward_args()));
    throw_if_error(synchronize(device));
    for (const Tensor* x : {&call.out, &call.lse, &call.dq, &call.dk, &call.dv})
      results[n].push_back(x->download());
  }
  for (std::size_t n = 0; n < results[0].size(); ++n)
    EXPECT_LT(difference(results[0][n], results[1][n]), 1e-5) << "result " << n;
}

}  // namespace
}  // namespace fovea::gpu
