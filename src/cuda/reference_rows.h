// Rows of the operands of cuda.reference: through the prologue into f64, and their gradients back.
#pragma once

#include <fovea/status.h>

#include "contract/plain_problem.h"
#include "cuda/finish.h"
#include "cuda/launch.h"
#include "cuda/row_space.h"

namespace fovea::cuda {

inline constexpr int kReferenceThreads = 128;
inline constexpr int kReferenceWarps = kReferenceThreads / 32;
/// Blocks for as many tasks of a warp, over which a kernel loops.
inline LaunchShape reference_blocks(std::int64_t warp_tasks) {
  return {blocks_for(ceil_div(warp_tasks, kReferenceWarps))};
}

/// Tasks of 32 rows, one a lane.
FOVEA_HD_INLINE std::int64_t lane_row_tasks(const RowSpace& space) {
  return space.shape.batch * space.heads() * ceil_div(space.rows(), 32);
}

/// to[row] = the row of `from` through the prologue, rounded once to from.compute. Rows that do not
/// count are neither read nor written.
struct LoadRowsArgs {
  plain::Source from;
  double eps = 0;  ///< of QK-norm
  RowSpace space;
  double* to = nullptr;  ///< [space.array_rows(), from.width]
};

/// sink[row] = gradient[row] back through RoPE and QK-norm, rounded once. Every row that a sequence
/// has is written, those that do not count with zeros. A row of zeros stays so, whatever the input
/// holds.
struct GiveBackRowsArgs {
  plain::Source input;  ///< q, k or v as it came in; its rows are read under QK-norm only
  double eps = 0;
  RowSpace space;
  double* gradient = nullptr;  ///< [space.array_rows(), input.width]; overwritten
  double* x = nullptr;         ///< the same, for the rows of the input
  plain::Sink sink;            ///< no segments: only the weights' gradients are wanted
  double* terms = nullptr;     ///< the same: r x_d dy_d of each row; null: no weights
  WeightGradient weights[plain::kMostSegments];
};

Status load_rows(int device, const LoadRowsArgs& args, void* stream);
Status give_back_rows(int device, const GiveBackRowsArgs& args, void* stream);

FOVEA_CUDA_EXPORT(const Entry* load_rows_entry());
FOVEA_CUDA_EXPORT(const Entry* give_back_rows_entry());
FOVEA_CUDA_EXPORT(const Entry* sum_weights_entry());

}  // namespace fovea::cuda
