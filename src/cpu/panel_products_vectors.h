// The products of panels by register tiles (tile_matmul.h). Z lies in columns of vectors; X is
// [columns of Y, padded].
#pragma once

#include "cpu/panel_products.h"

namespace fovea::cpu {
namespace {

struct MatrixUnit {};

/// Rows of a block that multiply_tile makes.
constexpr std::int64_t kBlockRows = kTileRows;

template <class Narrow, class Step>
FOVEA_INLINE void dot_panel(Rows a, std::int64_t rows, const float* b, std::int64_t depth, float* c,
                            std::int64_t c_row, std::int64_t columns, Narrow narrow, Step step) {
  for (std::int64_t first = 0; first < columns; first += kTileCols)
    for (std::int64_t i = 0; i < rows; i += kTileRows) {
      const std::int64_t height = lesser(kTileRows, rows - i);
      step();
      const Span some = narrow(i, height);
      Span lanes = meet({some.begin - first, some.end - first}, {0, kTileCols});
      if (lanes.empty()) continue;
      lanes = {lanes.begin / kLanes * kLanes, round_up(lanes.end, kLanes)};
      TileArgs t{};
      t.a = a.at(i);
      t.a_row = a.row;
      t.a_step = 1;
      t.b = b + first * depth + lanes.begin;
      t.b_row = kTileCols;
      t.c = c + i * c_row + first + lanes.begin;
      t.c_row = c_row;
      t.depth = depth;
      dot_tile(static_cast<int>(height), static_cast<int>((lanes.end - lanes.begin) / kLanes), t);
    }
}

inline void pack_right(Rows from, std::int64_t rows, std::int64_t width, float* to,
                       std::int64_t capacity) {
  pack_columns(from, rows, width, to, capacity);
}
inline bool right_is_finite(const float* packed, std::int64_t width, std::int64_t capacity,
                            std::int64_t rows) {
  return columns_are_finite(packed, width, capacity, rows);
}

/// Rows [begin, end) of kTileCols columns of X, or fewer, times their factors.
FOVEA_INLINE void rescale_rows(const DownProduct& p, std::int64_t begin, std::int64_t end, float* x,
                               int vecs) {
  for (std::int64_t i = begin; i < end; ++i)
    for (int v = 0; v < vecs; ++v) {
      float* at = x + i * p.padded + v * kLanes;
      store(at, load(at) * splat(p.rescale[i]));
    }
}

template <class Narrow, class Step>
FOVEA_INLINE void add_down(const DownProduct& p, Narrow narrow, Step step) {
  const auto tile = p.first                ? tile_function<Into::kStore>
                    : p.rescale != nullptr ? tile_function<Into::kRescaleAdd>
                                           : tile_function<Into::kAdd>;
  for (std::int64_t d = 0; d < p.padded; d += kTileCols) {
    const int vecs = static_cast<int>(lesser(kTileCols, p.padded - d) / kLanes);
    const float* z = p.z + d * p.z_capacity + p.z_first * kTileCols;
    for (std::int64_t i = 0; i < p.columns; i += kTileRows) {
      const std::int64_t height = lesser(kTileRows, p.columns - i);
      if (d == 0) step();
      const Span some = narrow(i, height);
      if (some.empty()) {
        if (p.rescale != nullptr) rescale_rows(p, i, i + height, p.x + d, vecs);
        continue;
      }
      TileArgs t{};
      t.a = p.y + some.begin / kPack * p.y_row + i;
      t.a_row = 1;
      t.a_step = p.y_row;
      t.b = z + some.begin / kPack * kTileCols;
      t.b_row = kTileCols;
      t.c = p.x + i * p.padded + d;
      t.c_row = p.padded;
      t.depth = words(some.end - some.begin);
      t.rescale = p.rescale + i;
      tile(static_cast<int>(height), vecs)(t);
    }
  }
}

/// seen[k]: the columns of Y that element k of the sum is visible to; null: all.
inline void add_down_visible(const DownProduct& p, const std::uint64_t* seen) {
  for (std::int64_t d = 0; d < p.padded; d += kTileCols) {
    const int vecs = static_cast<int>(lesser(kTileCols, p.padded - d) / kLanes);
    if (p.rescale != nullptr) rescale_rows(p, 0, p.columns, p.x + d, vecs);
    TileArgs t{};
    t.a = p.y;
    t.a_row = 1;
    t.a_step = p.y_row;
    t.b = p.z + d * p.z_capacity + p.z_first * kTileCols;
    t.b_row = kTileCols;
    t.c = p.x + d;
    t.c_row = p.padded;
    t.depth = p.depth;
    add_visible(t, p.columns, vecs, [&](std::int64_t r, std::int64_t k) {
      return seen == nullptr || (seen[k] >> r & 1) != 0;
    });
  }
}

/// The rows of X, of panels that adjoin; to be asked for in their order.
class RowsOfSums {
 public:
  RowsOfSums(float* x, std::int64_t padded, float*) : x_(x), padded_(padded) {}
  float* at(std::int64_t row) const { return x_ + row * padded_; }

 private:
  float* x_;
  std::int64_t padded_;
};

template <Into kInto>
FOVEA_INLINE void multiply_tile(int rows, int vecs, const TileArgs& t) {
  tile_function<kInto>(rows, vecs)(t);
}

}  // namespace
}  // namespace fovea::cpu
