// cuda.sm80.backward: what the kernel is told.
#pragma once

#include "contract/plain_call.h"
#include "cuda/mask_tiles.h"
#include "cuda/variant.h"

namespace fovea::cuda {

/// f32 sums of a gradient [batch, heads, rows, columns], or packed: place.first_row counts then.
using Sums = plain::Output;

/// q, k, v and dout have one segment each in the compute dtype with rows of whole 16-byte chunks.
struct BackwardArgs : plain::Call {
  plain::Source dout;
  plain::Input lse;     ///< [batch, q_heads, q_len]; columns unused
  plain::Output delta;  ///< likewise: rowsum(dO o O) - dlse
  plain::Input dlse;    ///< likewise; data may be null
  MaskTiles mask_tiles;
  float score_scale = 1;  ///< scale
  bool bent = false;      ///< scores are more than scale q.k

  Sums dq;             ///< without the factor scale; zeros at the start; data may be null
  plain::Sink dk, dv;  ///< no segments: not wanted, or, dk, wanted as sums
  Sums dk_sums;        ///< complete, the factor scale included; data may be null
  /// Deterministic: [batch, q_heads, row_tiles, column_tiles], zeros at the start: how many tiles
  /// of keys have added their part of dq. Null: in any order.
  std::uint32_t* turns = nullptr;

  std::int64_t key_tiles = 0, row_tiles = 0, column_tiles = 1, tasks = 0;
};

struct MaskGradientArgs : BackwardArgs {
  plain::MaskSink dmask;
  std::int64_t mask_key_tiles = 0, mask_tasks = 0;
};

struct BackwardTile {
  int keys, rows, columns, warps;  ///< columns: of the gradients that a block sums
  std::size_t shared_bytes;
  bool woven = false;  ///< sums of dq lie as woven_sums.h says
};

/// Gradient columns that one block sums; wider ones take several.
inline constexpr int kMaxGradientColumns = 128;

/// As ForwardVariant.
using BackwardVariant = Variant<BackwardTile>;

FOVEA_CUDA_EXPORT(BackwardVariant backward_bf16(std::int64_t head_dim, bool masked,
                                                std::size_t shared_bytes));
FOVEA_CUDA_EXPORT(BackwardVariant backward_f16(std::int64_t head_dim, bool masked,
                                               std::size_t shared_bytes));
FOVEA_CUDA_EXPORT(BackwardVariant backward_f32(std::int64_t head_dim, bool masked,
                                               std::size_t shared_bytes));
FOVEA_CUDA_EXPORT(BackwardVariant backward_tf32(std::int64_t head_dim, bool masked,
                                                std::size_t shared_bytes));

/// The kernels that compute the mask's gradient.
FOVEA_CUDA_EXPORT(BackwardVariant mask_gradient_bf16(std::int64_t head_dim,
                                                     std::size_t shared_bytes));
FOVEA_CUDA_EXPORT(BackwardVariant mask_gradient_f16(std::int64_t head_dim,
                                                    std::size_t shared_bytes));
FOVEA_CUDA_EXPORT(BackwardVariant mask_gradient_f32(std::int64_t head_dim,
                                                    std::size_t shared_bytes));
FOVEA_CUDA_EXPORT(BackwardVariant mask_gradient_tf32(std::int64_t head_dim,
                                                     std::size_t shared_bytes));

}  // namespace fovea::cuda
