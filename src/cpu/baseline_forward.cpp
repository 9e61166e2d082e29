// cpu.baseline.forward: the yardstick of the numerics tests. Forward as an ordinary framework
// evaluates it that materialises S and P: f32 accumulation, S and P rounded to the compute dtype
// (reference_forward.h, reference_arithmetic.h).
//
// Not meant to serve. Takes what the reference takes, with f32, f16 or bf16 as compute dtype.
#include "cpu/isa.h"
#include "cpu/reference_forward.h"

namespace fovea {
namespace {

Refusal supports(const Problem& problem) {
  if (problem.compute == DType::f64)
    return Refusal::because(RefusalCode::compute_dtype, static_cast<std::int64_t>(problem.compute),
                            0, "f32, f16, bf16");
  return refuse_features_beyond(problem,
                                kEveryFeature - (Feature::quantization | Feature::f64_lse));
}

}  // namespace

extern const Kernel cpu_baseline_forward;
const Kernel cpu_baseline_forward = {
    "cpu.baseline.forward",
    "cpu",
    "baseline",
    Direction::forward,
    DeviceType::cpu,
    true,
    cpu::runs_on_every_cpu,
    supports,
    reference::forward_workspace<reference::Unfused>,
    reference::forward_run<reference::Unfused>,
};

}  // namespace fovea
