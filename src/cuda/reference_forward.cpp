// cuda.reference.forward as a row of the kernel table: the oracle on a GPU. Forward in f64, by
// reference_rows.cu and reference_forward.cu.
//
// Serves what cpu.reference.forward serves, head dims up to 512: every float dtype, layout and
// feature, except quantised evaluation. `tf32` is evaluated exactly. Chosen only by name.
#include "cuda/reference_call.h"

namespace fovea::cuda {
namespace {

/// All that a run does.
struct ForwardCall {
  ReferenceForwardArgs args;
  ReferenceOperands operands;
  std::size_t workspace_bytes = 0;
};

ForwardCall make_call(const Problem& p, std::byte* memory) {
  ForwardCall call;
  Workspace workspace(memory);
  call.operands = ReferenceOperands(p, workspace, call.args);
  call.args.out = plain::sink_like_out(p, p.out_segments);
  call.args.lse = {plain::rows_of_heads<void*>(p, p.lse), plain::element_of(p.lse.dtype)};
  call.workspace_bytes = workspace.bytes();
  return call;
}

std::size_t workspace_bytes(const Problem& p, int) { return make_call(p, nullptr).workspace_bytes; }

std::int64_t staged_copies(const Problem& p) { return make_call(p, nullptr).operands.count(); }

Status run(const Problem& p, const Launch& on) {
  const ForwardCall call = make_call(p, on.workspace);
  const int device = p.device.index;
  if (Status s = call.operands.run(device, on.stream); !s.ok()) return s;
  return launch(device, *FOVEA_CUDA_PICK(reference_forward_entry)(),
                reference_blocks(query_tasks(call.args.shape)), call.args, on.stream);
}

Refusal supports(const Problem& p) {
  if (Refusal refusal = refuse_wide_heads(p); !refusal.serves()) return refusal;
  return refuse_features_beyond(p, kEveryFeature - Feature::quantization);
}

}  // namespace
}  // namespace fovea::cuda

namespace fovea {

extern const Kernel cuda_reference_forward;
const Kernel cuda_reference_forward = {"cuda.reference.forward",
                                       "cuda",
                                       "reference",
                                       Direction::forward,
                                       DeviceType::cuda,
                                       /*explicit_only=*/true,
                                       cuda::available_sm80,
                                       cuda::supports,
                                       cuda::workspace_bytes,
                                       cuda::run,
                                       /*specialist=*/false,
                                       /*version=*/nullptr,
                                       cuda::staged_copies};

}  // namespace fovea
