// What every backward on tensor cores does beside its own kernel: operands as it reads them, delta,
// sums that are zeros when it begins, and what becomes of them.
#pragma once

#include "cuda/finish.h"
#include "cuda/prepare.h"
#include "cuda/sm80_backward.h"
#include "cuda/sm80_call.h"

namespace fovea::cuda {

struct BackwardSteps {
  Staging staging;
  MaskLook mask;
  PrepareArgs prepare;
  FinishArgs finish[2];
  int finishes = 0;

  /// Fills what does not depend on the kernel but for its tile.
  void plan(const Problem& p, const BackwardTile& tile, BackwardArgs& args, Workspace& workspace);
  Status before(int device, const Launch& on) const;
  Status after(int device, const Launch& on) const;

 private:
  FinishArgs& add_finish(const MutableOperand& gradient, const plain::Source& input,
                         const RowSpace& space, const Sums& sums, Workspace& workspace);
};

}  // namespace fovea::cuda
