// The products of panels. Kernels leave to them how operands are packed, how sums lie, and in which
// blocks the work is done; vectors and AMX have a file each for that:
//
//   dot_panel       C [rows, kPanel] = A B: A's rows as they lie or are staged, B by pack_across
//   add_down        X [columns of Y, width] += Y^T Z: Y as scores lie, Z by pack_right
//   add_down_visible   the same, product by product over what is visible
//   RowsOfSums      the rows of X
//   multiply_tile   a block C [kBlockRows, kTileCols] of any other product
//   MatrixUnit      what they need while they run
//
// `narrow` says which part of a block somebody sees; the rest may be left out. A whole step of a
// sum is kDepth elements.
#pragma once

#include "cpu/tile_pack.h"

namespace fovea::cpu {
namespace {

struct DownProduct {
  const float* y;  ///< [words, kPanel]
  std::int64_t y_row;
  std::int64_t depth;                ///< elements
  std::int64_t columns;              ///< of Y that count
  const float* z;                    ///< [depth, width]
  std::int64_t z_capacity, z_first;  ///< words: what it was packed with, and the first one to use
  float* x;                          ///< of this panel
  std::int64_t padded;               ///< width in whole vectors
  const float* rescale = nullptr;    ///< X is multiplied by it first [columns]
  bool first = false;                ///< X holds nothing yet: = for +=. All of Y has to be visible
};

}  // namespace
}  // namespace fovea::cpu

#if defined(__AMX_BF16__)
#include "cpu/panel_products_amx.h"
#else
#include "cpu/panel_products_vectors.h"
#endif
