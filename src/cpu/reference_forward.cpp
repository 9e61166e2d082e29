// cpu.reference.forward: the oracle. Forward in f64 (reference_forward.h).
//
// Every other kernel is measured against this one, so it follows the formulas of docs/maths.md and
// does nothing for speed that would cost clarity.
//
// Serves: every float dtype, head dim, layout and feature, except quantised evaluation. `tf32` is
// evaluated exactly. Chosen only by name.
#include "cpu/reference_forward.h"

#include "cpu/isa.h"

namespace fovea {
namespace {

Refusal supports(const Problem& problem) {
  return refuse_features_beyond(problem, kEveryFeature - Feature::quantization);
}

}  // namespace

extern const Kernel cpu_reference_forward;
const Kernel cpu_reference_forward = {
    "cpu.reference.forward",
    "cpu",
    "reference",
    Direction::forward,
    DeviceType::cpu,
    true,
    cpu::runs_on_every_cpu,
    supports,
    reference::forward_workspace<reference::Exact>,
    reference::forward_run<reference::Exact>,
};

}  // namespace fovea
