// cuda merge: partial results over disjoint sets of keys become one.
#pragma once

#include "contract/backend.h"
#include "cuda/launch.h"
#include "cuda/row_space.h"

namespace fovea::cuda {

// The public merge.

inline constexpr int kMostMergeParts = 32;

/// [batch, heads, rows, columns]; strides in elements.
struct MergeTensor {
  void* data = nullptr;
  plain::Element element = plain::Element::f32;
  std::int64_t strides[4] = {};
};
struct MergePart {
  MergeTensor out, lse;
};
struct MergeArgs {
  std::int64_t batch = 0, heads = 0, rows = 0, width = 0;
  MergeTensor out, lse;  ///< lse's data may be null
  plain::Floats sinks;   ///< [heads]
  int count = 0;
  MergePart parts[kMostMergeParts];
};

/// lse = log sum_n exp lse_n [+ exp sink], out = sum_n exp(lse_n - lse) out_n, in f64 per row. At
/// most kMostMergeParts parts; any width.
Status merge(int device, const MergeProblem& problem, void* stream);

// The end of a forward that splits keys.

/// out = keep_scale sum_n O_n e^(m_n - m) / sum_n l_n e^(m_n - m), lse likewise, both with the
/// sink; a row that sees nothing becomes 0 and -inf (the sink).
struct MergeSplitsArgs {
  RowSpace space;                  ///< by queries
  const float* sums = nullptr;     ///< O [splits, space.array_rows(), padded]; 16-byte aligned
  const float* maxima = nullptr;   ///< m [splits, space.array_rows()], -inf: saw nothing
  const float* weights = nullptr;  ///< l [splits, space.array_rows()]
  int splits = 0;
  std::int64_t padded = 0;  ///< a multiple of 8, at least the width
  plain::Sink out;
  plain::Output lse;    ///< data may be null
  plain::Floats sinks;  ///< [q_heads]
  float keep_scale = 1;
};

/// Workspace for the arrays of MergeSplitsArgs: sums, then maxima, then weights.
std::size_t merge_splits_bytes(const RowSpace& space, int splits, std::int64_t padded);

Status merge_splits(int device, const MergeSplitsArgs& args, void* stream);

FOVEA_CUDA_EXPORT(const Entry* merge_entry());
FOVEA_CUDA_EXPORT(const Entry* merge_splits_entry(std::int64_t padded));
inline constexpr int kMergeThreads = 256;
inline constexpr int kMergeRows = 64;

/// Groups of lanes that share a row of the result, and rows that a block works at.
struct SplitTiles {
  int groups, rows;
};
FOVEA_HD inline SplitTiles split_tiles(std::int64_t padded, int splits) {
  int lanes = 4, groups = 1;
  while (lanes < 32 && lanes * 8 < padded) lanes *= 2;
  const int all = kMergeThreads / lanes;
  while (groups < all && groups < splits) groups *= 2;
  return {groups, all / groups};
}

}  // namespace fovea::cuda
