#include "cuda/stage.h"

#include "cuda/runtime.h"

namespace fovea::cuda {

bool needs_stage(const plain::Source& source, bool packed) {
  if (source.segments.count == 0) return false;
  const plain::Segment<const char*>& s = source.segments.at[0];
  const std::int64_t size = plain::size_of(s.element);
  const auto whole = [size](std::int64_t elements) { return elements * size % 16 == 0; };
  if (source.segments.count > 1 || s.element != source.compute || source.prologue.norm ||
      source.prologue.rotate || s.column != 1 || !whole(source.width))
    return true;
  const bool paged = source.pages.table != nullptr;
  return !whole(s.row) || !whole(s.head) ||
         (paged ? !whole(source.pages.stride) : !packed && !whole(s.batch));
}

std::size_t stage_bytes(const RowSpace& space, std::int64_t padded, plain::Element compute) {
  return static_cast<std::size_t>(space.array_rows() * padded * plain::size_of(compute));
}

Status stage(int device, const StageArgs& args, void* stream) {
  const LaunchShape shape{blocks_for(row_tile_tasks(args.space))};
  const bool prologue = args.from.prologue.norm || args.from.prologue.rotate;
  return launch(device, *FOVEA_CUDA_PICK(stage_entry)(args.padded, prologue), shape, args, stream);
}

}  // namespace fovea::cuda
