// cuda stage: rows of q, k, v, out or dout as the products want them.
#pragma once

#include <fovea/status.h>

#include "cuda/launch.h"
#include "cuda/row_space.h"

namespace fovea::cuda {

/// to[row] = the row of `from` through the prologue, rounded once to from.compute (f32, f16 or
/// bf16). Rows of a sequence that do not count are zeros, and not read; so are columns from the
/// width to `padded`. Dense: all rows() of a sequence are written; packed: those it has, and rows
/// that belong to no sequence stay as they are. A paged operand becomes a dense one.
struct StageArgs {
  plain::Source from;
  RowSpace space;
  void* to = nullptr;       ///< [space.array_rows(), padded] in from.compute; 16-byte aligned
  std::int64_t padded = 0;  ///< from.width rounded up, to a multiple of 8
};

/// Whether rows of the source cannot be read by 16 bytes from where they lie, as the products want
/// them, alignment of the first one aside: several segments, another element type, a prologue,
/// strides or widths of odd sizes.
bool needs_stage(const plain::Source& source, bool packed);

std::size_t stage_bytes(const RowSpace& space, std::int64_t padded, plain::Element compute);

Status stage(int device, const StageArgs& args, void* stream);

FOVEA_CUDA_EXPORT(const Entry* stage_entry(std::int64_t padded, bool prologue));

}  // namespace fovea::cuda
