// cuda prepare: what backward needs of each row before the products, and the sinks' gradient.
#pragma once

#include <fovea/status.h>

#include "cuda/launch.h"
#include "cuda/row_space.h"

namespace fovea::cuda {

inline constexpr int kPrepareRows = 64;

/// delta_i = sum_d out_id dout_id - dlse_i, in f32 from each tensor's own type;
/// dsink_h = -sum_{b, i} exp(sink_h - lse_i) delta_i, in f64.
struct PrepareArgs {
  RowSpace space;  ///< by queries
  plain::Source out, dout;
  plain::Input lse, dlse;  ///< [batch, q_heads, q_len] or packed; dlse may be null
  float* delta = nullptr;  ///< [space.array_rows()]
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
  return ceil_div(space.rows(), kPrepareRows);
}
FOVEA_HD inline std::int64_t prepare_tasks(const RowSpace& space) {
  return space.shape.batch * space.heads() * prepare_tiles(space);
}
FOVEA_CUDA_EXPORT(const Entry* prepare_entry(std::int64_t v_head_dim));
FOVEA_CUDA_EXPORT(const Entry* store_dsinks_entry());
inline constexpr std::size_t kPrepareSharedBytes = kPrepareRows * sizeof(double);

}  // namespace fovea::cuda
