// cpu.baseline.backward: the yardstick of the numerics tests. Backward as an ordinary framework
// evaluates it that materialises P, dP and dS: f32 accumulation, those three rounded to the compute
// dtype (reference_backward.h, reference_arithmetic.h).
//
// Not meant to serve. Takes what the reference takes, with f32, f16 or bf16 as compute dtype.
#include "cpu/isa.h"
#include "cpu/reference_backward.h"

namespace fovea {
namespace {

Refusal supports(const Problem& problem) {
  if (problem.compute == DType::f64)
    return Refusal::because(RefusalCode::compute_dtype, static_cast<std::int64_t>(problem.compute),
                            0, "f32, f16, bf16");
  return refuse_features_beyond(problem, kEveryFeature - (Feature::quantization | Feature::paged));
}

}  // namespace

extern const Kernel cpu_baseline_backward;
const Kernel cpu_baseline_backward = {
    "cpu.baseline.backward",
    "cpu",
    "baseline",
    Direction::backward,
    DeviceType::cpu,
    true,
    cpu::runs_on_every_cpu,
    supports,
    reference::backward_workspace<reference::Unfused>,
    reference::backward_run<reference::Unfused>,
};

}  // namespace fovea
