// cuda.sm80.forward and cuda.sm80.decode.forward: what the kernels are told.
#pragma once

#include "contract/plain_call.h"
#include "cuda/mask_tiles.h"
#include "cuda/variant.h"

namespace fovea::cuda {

/// q, k and v have one segment each in the compute dtype with rows of whole 16-byte chunks; k and v
/// may be paged.
struct ForwardArgs : plain::Call {
  plain::Sink out;
  plain::Output lse;  ///< columns unused; data may be null
  MaskTiles mask_tiles;
  float score_scale = 1;  ///< scale
  bool bent = false;      ///< scores are more than scale q.k
  std::int64_t row_tiles = 0, value_tiles = 1, tasks = 0;
  bool last_rows_first = false;  ///< the last rows see the most keys
  std::int64_t pack = 1;         ///< query heads whose rows share a tile: 1, or the whole group

  // Keys of a sequence in `splits` parts, each with results of its own; see merge.h.
  std::int64_t splits = 1, split_keys = 0;
  float* partial_sums = nullptr;     ///< [splits, rows_by_queries, partial_width]
  float* partial_maxima = nullptr;   ///< [splits, rows_by_queries]: the largest scores
  float* partial_weights = nullptr;  ///< likewise
  std::int64_t partial_width = 0;
};

/// Shape of a tile: what fits a device decides among several.
struct ForwardTile {
  int rows, keys, values, warps;  ///< values: columns of v that a block sums
  std::size_t shared_bytes;
};

/// The largest value columns that one block sums; wider values take several.
inline constexpr int kMaxValueColumns = 256;

/// Tile and code for a head dim (the larger of head_dim and v_head_dim) within `shared_bytes`. few:
/// for 16 packed rows at most. masked: scores are bent, masked or dropped.
using ForwardVariant = Variant<ForwardTile>;
FOVEA_CUDA_EXPORT(ForwardVariant forward_bf16(std::int64_t head_dim, bool few, bool masked,
                                              std::size_t shared_bytes));
FOVEA_CUDA_EXPORT(ForwardVariant forward_f16(std::int64_t head_dim, bool few, bool masked,
                                             std::size_t shared_bytes));
FOVEA_CUDA_EXPORT(ForwardVariant forward_f32(std::int64_t head_dim, bool few, bool masked,
                                             std::size_t shared_bytes));
FOVEA_CUDA_EXPORT(ForwardVariant forward_tf32(std::int64_t head_dim, bool few, bool masked,
                                              std::size_t shared_bytes));

}  // namespace fovea::cuda
