#include "cuda/mask_tiles.h"

#include "cuda/runtime.h"

namespace fovea::cuda {

MaskTiles mask_tiles_in(const plain::MaskArgs& mask, const plain::Shape& shape,
                        const std::uint8_t* to) {
  const MaskTileCounts counts = mask_tile_counts(mask, shape);
  const std::int64_t plane = counts.rows * counts.keys;
  return {to, mask.batch == 0 ? 0 : counts.heads * plane, mask.head == 0 ? 0 : plane,
          mask.row == 0 ? 0 : counts.keys, mask.column == 0 ? 0 : 1};
}

Status mask_tiles(int device, const MaskTilesArgs& args, void* stream) {
  constexpr std::int64_t kTilesOfBlock = 8;
  const std::int64_t tiles = mask_tile_counts(args.mask, args.shape).all();
  const LaunchShape shape{blocks_for(ceil_div(tiles, kTilesOfBlock)), kMaskTilesSharedBytes};
  return launch(device, *FOVEA_CUDA_PICK(mask_tiles_entry)(), shape, args, stream);
}

}  // namespace fovea::cuda
