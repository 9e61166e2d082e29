// cuda finish: gradients of rows of q^, k^ or v^ become those of q, k or v.
#pragma once

#include <fovea/status.h>

#include "cuda/launch.h"
#include "cuda/row_space.h"

namespace fovea::cuda {

/// The gradient of a segment's norm weights, [width].
struct WeightGradient {
  void* data = nullptr;  ///< null: not wanted
  plain::Element element = plain::Element::f32;
  std::int64_t stride = 0;
};

/// sink[row] = factor sums[row], back through RoPE and QK-norm. Every row that a sequence has is
/// written, those that do not count with zeros; rows that belong to no sequence are not. A row
/// whose sums are all 0 stays 0, whatever the input holds.
struct FinishArgs {
  plain::Source input;  ///< q, k or v as it came in; its rows are read under QK-norm only
  RowSpace space;
  const float* sums = nullptr;  ///< [space.array_rows(), padded]; 16-byte aligned
  std::int64_t padded = 0;      ///< a multiple of 8, at least the width
  bool woven = false;           ///< they lie as woven_sums.h says; padded: a multiple of 16
  float factor = 1;
  plain::Sink sink;  ///< no segments: only the weights' gradients are wanted
  WeightGradient weights[plain::kMostSegments];
  float* shares = nullptr;  ///< finish_bytes(); null where no weights' gradient is wanted
};

bool any_wanted(const WeightGradient (&weights)[plain::kMostSegments]);
/// Workspace for the gradients of norm weights.
std::size_t finish_bytes(const RowSpace& space, std::int64_t width);

Status finish(int device, const FinishArgs& args, void* stream);

/// What blocks leave of the weights' gradients: [shares, segments, width].
FOVEA_HD inline std::int64_t finish_shares(const RowSpace& space) {
  constexpr std::int64_t kMost = 512;
  const std::int64_t tasks = row_tile_tasks(space);
  return tasks < kMost ? tasks : kMost;
}
FOVEA_CUDA_EXPORT(const Entry* finish_entry(std::int64_t padded, bool prologue, bool weights));
FOVEA_CUDA_EXPORT(const Entry* store_weights_entry());
inline constexpr int kFinishThreads = 256;

}  // namespace fovea::cuda
