#include "cuda/sm90_maps.h"

#include "cuda/runtime.h"

namespace fovea::cuda {

template <class Pointer>
std::optional<MapOf> map_of(const plain::Segments<Pointer>& segments, const RowSpace& space,
                            std::int64_t width, int box_rows) {
  if (segments.count != 1) return {};
  const plain::Segment<Pointer>& s = segments.at[0];
  if (s.element != plain::Element::bf16 && s.element != plain::Element::f16) return {};
  MapOf map;
  TensorBox& box = map.box;
  box.data = s.data;
  box.element = s.element == plain::Element::f16 ? TensorElement::f16 : TensorElement::bf16;
  const std::int64_t rows = space.packed ? space.total() : space.rows();
  const std::int64_t batch = space.packed ? 1 : space.shape.batch;
  const std::int64_t sizes[4] = {width, rows, space.heads(), batch};
  const std::int64_t strides[4] = {s.column, s.row, s.head, s.batch};
  for (int d = 0; d < 4; ++d) {
    box.sizes[d] = sizes[d];
    box.strides[d] = strides[d];
    if (d == 0 ? strides[d] == 1 || sizes[d] == 1 : false) continue;
    if (d > 0 && (sizes[d] == 1 || (d > 1 && strides[d] == 0))) {
      // One place for all: the coordinate is 0.
      box.sizes[d] = 1;
      box.strides[d] = kCopyUnit;
      continue;
    }
    if (d == 0 || strides[d] < kCopyUnit || strides[d] % kCopyUnit != 0 ||
        strides[d] >= std::int64_t{1} << 38)
      return {};
    if (sizes[d] > kMostRows) return {};
  }
  box.strides[0] = 1;
  box.box[0] = 64;
  box.box[1] = box_rows;
  map.steps = {box.sizes[2] > 1 ? 1 : 0, box.sizes[3] > 1 ? 1 : 0};
  return map;
}

template std::optional<MapOf> map_of(const plain::Segments<const char*>&, const RowSpace&,
                                     std::int64_t, int);
template std::optional<MapOf> map_of(const plain::Segments<char*>&, const RowSpace&, std::int64_t,
                                     int);

bool begins_aligned(const MapOf& map) {
  return reinterpret_cast<std::uintptr_t>(map.box.data) % 16 == 0;
}

Status encode(TensorMap& to, MapSteps& steps, const MapOf& from) {
  steps = from.steps;
  return runtime().encode(to, from.box);
}

}  // namespace fovea::cuda
