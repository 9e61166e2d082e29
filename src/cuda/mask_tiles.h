// cuda mask_tiles: what each tile of a mask holds, so that the flash kernels read few of them.
#pragma once

#include <fovea/status.h>

#include "cuda/launch.h"
#include "cuda/row_space.h"

namespace fovea::cuda {

inline constexpr int kMaskRows = 64;
inline constexpr int kMaskKeys = 64;

/// What a tile is: its class, one byte.
inline constexpr int kTileHidden = 0;   ///< no element is visible
inline constexpr int kTileVisible = 1;  ///< every element is, and there is nothing to add
inline constexpr int kTileMixed = 2;    ///< the mask must be read

/// Classes of the tiles of a mask; strides in bytes, 0 where the mask is broadcast.
struct MaskTiles {
  const std::uint8_t* data = nullptr;  ///< null: no mask
  std::int64_t batch = 0, head = 0, row = 0, key = 0;
};

FOVEA_HD inline int tile_class(const MaskTiles& tiles, std::int64_t b, std::int64_t h,
                               std::int64_t row_tile, std::int64_t key_tile) {
  if (tiles.data == nullptr) return kTileVisible;
  return tiles.data[b * tiles.batch + h * tiles.head + row_tile * tiles.row + key_tile * tiles.key];
}

/// The class of a stretch of the mask, which may be several tiles or part of one.
FOVEA_HD_INLINE int class_of(const MaskTiles& tiles, std::int64_t b, std::int64_t h,
                             plain::Span rows, plain::Span keys) {
  int seen = -1;
  for (std::int64_t i = rows.begin / kMaskRows; i * kMaskRows < rows.end; ++i)
    for (std::int64_t j = keys.begin / kMaskKeys; j * kMaskKeys < keys.end; ++j) {
      const int here = tile_class(tiles, b, h, i, j);
      seen = seen < 0 || seen == here ? here : kTileMixed;
    }
  return seen;
}

/// How many tiles a mask has: those along which it is broadcast count once.
struct MaskTileCounts {
  std::int64_t batch, heads, rows, keys;
  FOVEA_HD std::int64_t all() const { return batch * heads * rows * keys; }
};
FOVEA_HD inline MaskTileCounts mask_tile_counts(const plain::MaskArgs& mask,
                                                const plain::Shape& shape) {
  const bool none = shape.batch * shape.q_heads * shape.q_len * shape.kv_len == 0;
  if (none || mask.data == nullptr) return {0, 0, 0, 0};
  return {mask.batch == 0 ? 1 : shape.batch, mask.head == 0 ? 1 : shape.q_heads,
          mask.row == 0 ? 1 : ceil_div(shape.q_len, kMaskRows),
          mask.column == 0 ? 1 : ceil_div(shape.kv_len, kMaskKeys)};
}

struct MaskTilesArgs {
  plain::MaskArgs mask;
  plain::Shape shape;
  std::uint8_t* to = nullptr;        ///< [mask_tile_counts().all()]
  std::uint64_t* visible = nullptr;  ///< added to: tiles that are all visible; null: not wanted
};

/// The classes that mask_tiles() leaves in `to`.
MaskTiles mask_tiles_in(const plain::MaskArgs& mask, const plain::Shape& shape,
                        const std::uint8_t* to);

/// Hidden is false, or an additive -inf in the mask's own type; nothing to add is 0. Elements
/// beyond the lengths of sequences count like others.
Status mask_tiles(int device, const MaskTilesArgs& args, void* stream);

FOVEA_CUDA_EXPORT(const Entry* mask_tiles_entry());
inline constexpr std::size_t kMaskTilesSharedBytes = 8 * sizeof(std::uint32_t);

}  // namespace fovea::cuda
