// Results that must repeat bit for bit on a GPU.
#include "gpu.h"

namespace fovea::gpu {
namespace {

class Repeats : public OnGpu {};

/// Long enough for all multiprocessors to have blocks that add to the same rows of dq.
DenseCall large_call() {
  DenseCall call(kGpu, DType::bf16, 2, 8, 2048, 2048, 64);
  call.upload_random(1);
  call.params.band = Band::causal(Anchor::top_left);
  return call;
}

TEST_F(Repeats, deterministic_backward_over_20_runs) {
  const DenseCall call = large_call();
  throw_if_error(forward(call.forward_args()));
  PlanOptions options;
  options.deterministic = true;
  const Plan plan = Plan::make(call.backward_args(), options).value();
  std::vector<std::byte> first[3];
  for (int run = 0; run < 20; ++run) {
    throw_if_error(plan.run(call.backward_args()));
    throw_if_error(synchronize(kGpu));
    const Tensor* gradients[3] = {&call.dq, &call.dk, &call.dv};
    for (int n = 0; n < 3; ++n) {
      std::vector<std::byte> bits = gradients[n]->bits();
      if (run == 0)
        first[n] = std::move(bits);
      else
        ASSERT_EQ(bits, first[n]) << "gradient " << n << ", run " << run;
    }
  }
}

TEST_F(Repeats, forward_over_20_runs) {
  const DenseCall call = large_call();
  const Plan plan = Plan::make(call.forward_args()).value();
  std::vector<std::byte> out, lse;
  for (int run = 0; run < 20; ++run) {
    throw_if_error(plan.run(call.forward_args()));
    throw_if_error(synchronize(kGpu));
    if (run == 0) {
      out = call.out.bits();
      lse = call.lse.bits();
    } else {
      ASSERT_EQ(call.out.bits(), out) << "run " << run;
      ASSERT_EQ(call.lse.bits(), lse) << "run " << run;
    }
  }
}

}  // namespace
}  // namespace fovea::gpu
