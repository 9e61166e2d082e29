// How the kernels of sm_90 see operands through the copy engine.
#pragma once

#include <cstddef>
#include <optional>

#include "cuda/row_space.h"
#include "cuda/tensor_map.h"

namespace fovea::cuda {

/// Of the coordinates of a map, head and batch times these: 0 where all lie at one place, or where
/// the rows of all sequences follow each other.
struct MapSteps {
  int head = 0, batch = 0;
};

struct MapOf {
  TensorBox box;
  MapSteps steps;
};

/// Coordinates of maps, and what is added to them, fit 32 bits.
inline constexpr std::int64_t kMostRows = std::int64_t{1} << 28;
/// Elements of 16 bytes.
inline constexpr std::int64_t kCopyUnit = 8;

/// Rows [batch, heads, rows, width] of one segment as boxes of `box_rows` rows; empty where the
/// copy engine cannot read them, alignment of the first one aside.
template <class Pointer>
std::optional<MapOf> map_of(const plain::Segments<Pointer>& segments, const RowSpace& space,
                            std::int64_t width, int box_rows);

bool begins_aligned(const MapOf& map);

Status encode(TensorMap& to, MapSteps& steps, const MapOf& from);

}  // namespace fovea::cuda
