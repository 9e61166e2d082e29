// cuda.reference.backward as a row of the kernel table: the oracle's gradients on a GPU, in f64, by
// reference_rows.cu and reference_backward.cu.
//
// Serves what cpu.reference.backward serves, head dims up to 512: every float dtype, layout and
// feature, except a paged KV cache and quantised evaluation. `tf32` is evaluated exactly. Always
// bitwise repeatable. Chosen only by name.
#include "cuda/reference_call.h"

namespace fovea::cuda {
namespace {

/// All that a run does.
struct BackwardCall {
  ReferenceBackwardArgs args;
  ReferenceOperands operands;
  GiveBackRowsArgs results[3];
  int result_count = 0;
  std::size_t workspace_bytes = 0;
};

/// sums: the gradient of the operand's rows.
void add_result(BackwardCall& call, const Problem& p, const MutableOperand& gradient,
                const plain::Source& input, const RowSpace& space, double* sums,
                Workspace& workspace) {
  if (!plain::wanted(gradient)) return;
  GiveBackRowsArgs& result = call.results[call.result_count++];
  const std::int64_t elements = space.array_rows() * input.width;
  result.input = input;
  result.eps = p.params.qk_norm.eps;
  result.space = space;
  result.gradient = sums;
  if (input.prologue.norm) result.x = workspace.take<double>(elements);
  result.sink = plain::sink_of_gradient(gradient, input);
  name_weights(gradient, result.weights);
  if (any_wanted(result.weights)) result.terms = workspace.take<double>(elements);
}

BackwardCall make_call(const Problem& p, std::byte* memory) {
  BackwardCall call;
  Workspace workspace(memory);
  ReferenceBackwardArgs& args = call.args;
  call.operands = ReferenceOperands(p, workspace, args);
  const RowSpace queries = rows_by_queries(args), keys = rows_by_keys(args);
  plain::Source dout = plain::source_like_out(p, p.dout_segments);
  dout.compute = plain::Element::f64;  // read as it is
  args.dout_rows = call.operands.add(dout, queries, workspace);
  args.dlse = {plain::rows_of_heads<const void*>(p, p.dlse), plain::element_of(p.dlse.dtype)};

  args.rows = workspace.take<ReferenceRow>(queries.array_rows());
  args.dq = workspace.take<double>(queries.array_rows() * p.head_dim);
  args.dk = workspace.take<double>(keys.array_rows() * p.head_dim);
  args.dv = workspace.take<double>(keys.array_rows() * p.v_head_dim);
  add_result(call, p, p.dq, args.q, queries, args.dq, workspace);
  add_result(call, p, p.dk, args.k, keys, args.dk, workspace);
  add_result(call, p, p.dv, args.v, keys, args.dv, workspace);
  if (p.dsinks.present()) {
    args.dsinks = {p.dsinks.data, plain::element_of(p.dsinks.dtype), p.dsinks.strides[0]};
    args.dsink_terms = workspace.take<double>(queries.array_rows());
  }
  args.dmask = plain::mask_sink(p);
  call.workspace_bytes = workspace.bytes();
  return call;
}

std::size_t workspace_bytes(const Problem& p, int) { return make_call(p, nullptr).workspace_bytes; }

std::int64_t staged_copies(const Problem& p) { return make_call(p, nullptr).operands.count(); }

Status run(const Problem& p, const Launch& on) {
  const BackwardCall call = make_call(p, on.workspace);
  const ReferenceBackwardArgs& args = call.args;
  const int device = p.device.index;
  Status status = call.operands.run(device, on.stream);
  const auto then = [&](const Entry& entry, std::int64_t warp_tasks) {
    if (status.ok()) status = launch(device, entry, reference_blocks(warp_tasks), args, on.stream);
  };
  then(*FOVEA_CUDA_PICK(reference_dq_entry)(), query_tasks(args.shape));
  then(*FOVEA_CUDA_PICK(reference_dk_dv_entry)(), key_tasks(args.shape));
  if (p.dsinks.present()) then(*FOVEA_CUDA_PICK(reference_dsinks_entry)(), p.q_heads);
  if (args.dmask.data != nullptr)
    then(*FOVEA_CUDA_PICK(reference_dmask_entry)(), dmask_tasks(args.dmask));
  for (int n = 0; n < call.result_count && status.ok(); ++n)
    status = give_back_rows(device, call.results[n], on.stream);
  return status;
}

Refusal supports(const Problem& p) {
  if (Refusal refusal = refuse_wide_heads(p); !refusal.serves()) return refusal;
  return refuse_features_beyond(p, kEveryFeature - (Feature::quantization | Feature::paged));
}

}  // namespace
}  // namespace fovea::cuda

namespace fovea {

extern const Kernel cuda_reference_backward;
const Kernel cuda_reference_backward = {"cuda.reference.backward",
                                        "cuda",
                                        "reference",
                                        Direction::backward,
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
