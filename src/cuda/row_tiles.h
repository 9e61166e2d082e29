// Tiles of rows of several heads, each a task of one block: heads share what they read of the
// tables of RoPE. For kernel sources.
#pragma once

#include "cuda/device/thread.h"
#include "cuda/row_space.h"
#include "cuda/warp_sequence.h"

namespace fovea::cuda::FOVEA_WORLD {
namespace {

struct RowTile {
  plain::Sequence sequence;
  std::int64_t first_row;  ///< of the sequence
  std::int64_t first_head;
  int heads;

  FOVEA_DEVICE int items() const { return heads * kTileRows; }
  FOVEA_DEVICE std::int64_t row(int item) const { return first_row + item % kTileRows; }
  FOVEA_DEVICE plain::Place place(const RowSpace& space, int item) const {
    return {sequence.batch, first_head + item / kTileRows, space.first_row(sequence)};
  }
};

/// All lanes of the warp take part.
FOVEA_DEVICE RowTile row_tile(const RowSpace& space, std::int64_t task) {
  const std::int64_t row_tiles = ceil_div(space.rows(), kTileRows);
  const std::int64_t head_tiles = ceil_div(space.heads(), kTileHeads);
  const std::int64_t batch = task / (row_tiles * head_tiles),
                     tile = task % (row_tiles * head_tiles);
  RowTile t;
  t.sequence = sequence_by_warp(space.shape, space.lengths, batch);
  t.first_row = tile / head_tiles * kTileRows;
  t.first_head = tile % head_tiles * kTileHeads;
  t.heads = static_cast<int>(plain::lesser(space.heads() - t.first_head, kTileHeads));
  return t;
}

}  // namespace
}  // namespace fovea::cuda::FOVEA_WORLD
