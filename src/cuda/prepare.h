// cuda prepare: what backward needs of each row before the products, and the sinks' gradient.
#pragma once

#include <fovea/status.h>

#include "cuda/launch.h"
#include "cuda/row_space.h"

namespace fovea::cuda {

inline constexpr int kPrepareRows = 64;

/// What Hopper's products need of 64 rows at once, 64 of each: lse in base 2, infinite where a row
/// has no weights; delta; and the share of dP in dS, which is 1. Where a row sees one key alone and
/// no sink, dP is the sum in delta, exactly: the share is 0 and delta -dlse. Rows beyond a sequence
/// have no weights. Each sequence has an even number of such tiles.
struct RowTiles {
  static constexpr int kFloats = 3 * kPrepareRows;
  float* data = nullptr;             ///< a multiple of 16 bytes; null: not wanted
  std::int64_t batch = 0, head = 0;  ///< tiles to the next

  FOVEA_HD_INLINE static std::int64_t of_rows(std::int64_t rows) {
    return ceil_div(rows, 2 * kPrepareRows) * 2;
  }
  /// Tiles for all heads. Packed sequences begin where as many rows, and two tiles each, would.
  FOVEA_HD_INLINE std::int64_t lay_out(const RowSpace& space) {
    head =
        space.packed ? space.total() / kPrepareRows + 2 * space.shape.batch : of_rows(space.rows());
    batch = space.packed ? 2 : space.heads() * head;
    return space.heads() * head * (space.packed ? 1 : space.shape.batch);
  }
  FOVEA_HD_INLINE float* at(const plain::Place& place, std::int64_t tile) const {
    return data +
           (place.batch * batch + place.head * head + place.first_row / kPrepareRows + tile) *
               kFloats;
  }
};

/// Memory that is to be zeros: whole multiples of 16 bytes.
struct Zeros {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// delta_i = sum_d out_id dout_id - dlse_i, in f32 from each tensor's own type; the same by tiles;
/// dsink_h = -sum_{b, i} exp(sink_h - lse_i) delta_i, in f64.
struct PrepareArgs {
  RowSpace space;  ///< by queries
  plain::Source out, dout;
  plain::Input lse, dlse;  ///< [batch, q_heads, q_len] or packed; dlse may be null
  float* delta = nullptr;  ///< [space.array_rows()]
  RowTiles tiles;
  plain::BandArgs band;  ///< for tiles
  Zeros zeros[3];
  plain::Floats sinks;     ///< [q_heads]
  void* dsinks = nullptr;  ///< [q_heads]; null: not wanted
  plain::Element dsinks_element = plain::Element::f32;
  std::int64_t dsinks_stride = 0;
  double* shares = nullptr;  ///< prepare_bytes(); null where dsinks is
};

/// Workspace for the sinks' gradient; 0 where it is not wanted.
std::size_t prepare_bytes(const RowSpace& space, bool wants_dsinks);

Status prepare(int device, const PrepareArgs& args, void* stream);

FOVEA_HD inline std::int64_t prepare_tiles(const RowSpace& space) {
  return RowTiles::of_rows(space.rows());
}
FOVEA_HD inline std::int64_t prepare_tasks(const RowSpace& space) {
  return space.shape.batch * space.heads() * prepare_tiles(space);
}
FOVEA_CUDA_EXPORT(const Entry* prepare_entry(std::int64_t v_head_dim));
FOVEA_CUDA_EXPORT(const Entry* store_dsinks_entry());
inline constexpr std::size_t kPrepareSharedBytes = kPrepareRows * (sizeof(double) + sizeof(float));

}  // namespace fovea::cuda
