// Sums of rows in f32 in the order in which the fragments of a product lie in registers: what a
// warp adds with one instruction is 512 adjoining bytes, and needs no trade between lanes.
//
// 8 rows go together, and of these 16 columns: each row's are 64 bytes, in which 4 adjoining
// elements are columns 2n, 2n + 1, 8 + 2n and 9 + 2n of the 16.
#pragma once

#include "contract/plain_rows.h"

namespace fovea::cuda {

inline constexpr int kWovenRows = 8, kWovenColumns = 16;

/// From one group of columns to the next.
inline constexpr int kWovenStep = kWovenRows * kWovenColumns;

/// Where a row of `width` elements, a multiple of kWovenColumns, begins.
FOVEA_HD_INLINE std::int64_t woven_row(std::int64_t row, std::int64_t width) {
  return row / kWovenRows * kWovenRows * width + row % kWovenRows * kWovenColumns;
}
/// Where a column lies from there.
FOVEA_HD_INLINE int woven_column(int column) {
  const int within = column % kWovenColumns;
  return column / kWovenColumns * kWovenStep + within % 8 / 2 * 4 + within / 8 * 2 + within % 2;
}

/// Sums of heads of sequences.
struct WovenSums {
  float* data = nullptr;
  std::int64_t batch = 0, head = 0;  ///< rows to the next; batch is 0 where sequences are packed
  std::int64_t width = 0;            ///< elements of a row
};

}  // namespace fovea::cuda
