// A kernel that is compiled for several tiles: which of them fits a device.
#pragma once

#include <cstddef>
#include <initializer_list>

#include "cuda/launch.h"

namespace fovea::cuda {

/// Tile has shared_bytes. An entry without threads: nothing fits.
template <class Tile>
struct Variant {
  Entry entry{};
  Tile tile{};
};

/// The first of the variants, best first, that fits.
template <class Tile>
Variant<Tile> first_that_fits(std::size_t shared_bytes,
                              std::initializer_list<Variant<Tile>> variants) {
  for (const Variant<Tile>& variant : variants)
    if (variant.tile.shared_bytes <= shared_bytes) return variant;
  return {};
}

}  // namespace fovea::cuda
