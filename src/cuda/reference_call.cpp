#include "cuda/reference_call.h"

namespace fovea::cuda {

ReferenceOperands::ReferenceOperands(const Problem& p, Workspace& workspace, ReferenceArgs& args)
    : eps_(p.params.qk_norm.eps) {
  static_cast<plain::Call&>(args) = plain::plain_call(p);
  args.softcap = p.params.softcap;
  args.q_rows = add(args.q, rows_by_queries(args), workspace);
  args.k_rows = add(args.k, rows_by_keys(args), workspace);
  args.v_rows = add(args.v, rows_by_keys(args), workspace);
}

double* ReferenceOperands::add(const plain::Source& from, const RowSpace& space,
                               Workspace& workspace) {
  auto* to = workspace.take<double>(space.array_rows() * from.width);
  args_[count_++] = {from, eps_, space, to};
  return to;
}

Status ReferenceOperands::run(int device, void* stream) const {
  for (int n = 0; n < count_; ++n)
    if (Status status = load_rows(device, args_[n], stream); !status.ok()) return status;
  return {};
}

}  // namespace fovea::cuda
