// cuda.sm90.backward: what the kernel is told.
#pragma once

#include "cuda/prepare.h"
#include "cuda/sm80_backward.h"
#include "cuda/sm90_maps.h"
#include "cuda/woven_sums.h"

namespace fovea::cuda {

/// q, k, v and dout in the compute dtype, which the maps are of.
struct HopperBackwardArgs {
  TensorMap q_map, k_map, v_map, dout_map;
  MapSteps q_steps, k_steps, v_steps, dout_steps;
  plain::Shape shape{};
  plain::Lengths lengths;
  plain::BandArgs band;
  plain::Segment<const char*> q, k, v, dout;
  plain::Input lse;     ///< [batch, q_heads, q_len]; columns unused
  plain::Output delta;  ///< likewise: rowsum(dO o O) - dlse
  plain::Input dlse;    ///< likewise; data may be null
  plain::Floats sinks;  ///< [q_heads]; data may be null

  RowTiles row_tiles;
  WovenSums dq;              ///< of dq / scale, zeros at first; data may be null
  plain::Sink dk, dv;        ///< as BackwardArgs has them
  Sums dk_sums;              ///< likewise
  float score_scale = 1;     ///< scale
  float exponent_scale = 1;  ///< scale log2(e), positive
  int key_tiles = 0;         ///< of the longest sequence
  int tasks = 0;             ///< tiles of keys of all KV heads
  /// Tiles of so many KV heads make a section, in which the first keys, which most rows see, come
  /// first; 0: tiles are taken head by head.
  int section_heads = 0;
  /// From which blocks draw their next task, 0 at first; null: they take every so many.
  std::uint32_t* drawn = nullptr;
  /// Values that are not finite may lie where a row or a key does not see them.
  bool check_values = false;
};

struct HopperBackwardTile {
  int keys, rows;
  std::size_t shared_bytes;
};

/// Tile and code for the larger of head_dim and v_head_dim.
using HopperBackwardVariant = Variant<HopperBackwardTile>;
FOVEA_CUDA_EXPORT(HopperBackwardVariant hopper_backward_bf16(std::int64_t head_dim));
FOVEA_CUDA_EXPORT(HopperBackwardVariant hopper_backward_f16(std::int64_t head_dim));

}  // namespace fovea::cuda
