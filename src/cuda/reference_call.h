// What cuda.reference.forward and cuda.reference.backward do alike before their kernels run.
#pragma once

#include "contract/kernel.h"
#include "cuda/reference_args.h"
#include "cuda/runtime.h"
#include "cuda/sm80_call.h"
#include "cuda/workspace.h"

namespace fovea::cuda {

/// The operands' rows in f64, in the workspace.
class ReferenceOperands {
 public:
  ReferenceOperands() = default;
  /// Those of q, k and v. `args` becomes what the problem says.
  ReferenceOperands(const Problem& p, Workspace& workspace, ReferenceArgs& args);

  /// Another one; where its rows will be.
  double* add(const plain::Source& from, const RowSpace& space, Workspace& workspace);
  Status run(int device, void* stream) const;
  [[nodiscard]] int count() const { return count_; }

 private:
  static constexpr int kMost = 4;
  LoadRowsArgs args_[kMost];
  int count_ = 0;
  double eps_ = 0;
};

}  // namespace fovea::cuda
