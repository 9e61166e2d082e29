// cuda.sm90.forward: what the kernel is told.
#pragma once

#include "contract/plain_call.h"
#include "cuda/sm90_maps.h"
#include "cuda/variant.h"

namespace fovea::cuda {

/// q, k and v have one segment each in the compute dtype, which the maps are of.
struct HopperForwardArgs : plain::Call {
  TensorMap q_map, k_map, v_map, out_map;
  MapSteps q_steps, k_steps, v_steps, out_steps;
  bool out_mapped = false;  ///< out_map can store it; a whole one, or 16 rows within a sequence
  plain::Sink out;
  plain::Output lse;         ///< columns unused; data may be null
  float exponent_scale = 1;  ///< scale log2(e), positive
  int row_tiles = 0;         ///< of the longest sequence
  int tasks = 0;
  /// Tiles of so many heads make a section, in which the last rows, which see the most keys, come
  /// first; 0: tiles are taken head by head.
  int section_heads = 0;
  /// From which blocks draw their next task, 0 at first; null: they take every so many.
  std::uint32_t* drawn = nullptr;
  /// Values that are not finite may lie where a row does not see them.
  bool check_values = false;
};

struct HopperForwardTile {
  int rows, keys, query_box_rows, out_box_rows;
  std::size_t shared_bytes;
};

/// Tile and code for the larger of head_dim and v_head_dim. banded: rows see unlike many keys.
using HopperForwardVariant = Variant<HopperForwardTile>;
FOVEA_CUDA_EXPORT(HopperForwardVariant hopper_forward_bf16(std::int64_t head_dim, bool banded));
FOVEA_CUDA_EXPORT(HopperForwardVariant hopper_forward_f16(std::int64_t head_dim, bool banded));

}  // namespace fovea::cuda
