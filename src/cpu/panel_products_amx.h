// The products of panels by AMX, on words of bf16 pairs. What pack_across and pair_rows make is a
// right operand as it is, and rows as they lie are a left one. X += Y^T Z is done transposed, with
// pairs of Y's rows on the right: Z is packed transposed, [width, capacity], and X lies so, in
// panels [padded, kPanel], with its factors across.
#pragma once

#include "cpu/amx.h"
#include "cpu/panel_products.h"
#include "cpu/tile_bits.h"

namespace fovea::cpu {
namespace {

/// Rows and columns of a block: 2 x 2 tile registers.
constexpr std::int64_t kBlockRows = 2 * kAmxRows;

template <class Narrow, class Step>
FOVEA_INLINE void dot_panel(Rows a, std::int64_t rows, const float* b, std::int64_t depth, float* c,
                            std::int64_t c_row, std::int64_t columns, Narrow narrow, Step) {
  Blocks<false> blocks;
  for (std::int64_t i = 0; i < rows; i += kBlockRows) {
    const std::int64_t height = lesser(kBlockRows, rows - i);
    const Span some = narrow(i, height);
    for (std::int64_t x = 0; x < columns; x += kBlockRows) {
      if (meet(some, {x, x + kBlockRows}).empty()) continue;
      blocks.multiply(height, columns - x,
                      {a.at(i), a.row, b + x, kTileCols, depth, c + i * c_row + x, c_row});
    }
  }
  blocks.finish();
}

/// [width in whole tiles, capacity], words of pairs of rows along the rows.
inline void pack_right(Rows from, std::int64_t rows, std::int64_t width, float* to,
                       std::int64_t capacity) {
  for (std::int64_t c = 0; c < width; c += 2 * kLanes)
    for (std::int64_t r = 0; r < words(rows); r += kLanes) {
      Vec low[kLanes], high[kLanes];
#pragma GCC unroll 16
      for (int n = 0; n < kLanes; ++n)
        pair_of_rows(from, rows, width, 2 * (r + n), c, low[n], high[n]);
      const auto put = [&](Vec(&block)[kLanes], std::int64_t column) {
        transpose(block);
#pragma GCC unroll 16
        for (int n = 0; n < kLanes; ++n) store(to + (column + n) * capacity + r, block[n]);
      };
      put(low, c);
      if (c + kLanes < width) put(high, c + kLanes);
    }
}
inline bool right_is_finite(const float* packed, std::int64_t width, std::int64_t capacity,
                            std::int64_t rows) {
  bool finite = true;
  for (std::int64_t c = 0; c < width; ++c)
    for (std::int64_t r = 0; r < words(rows); r += kLanes)
      finite = finite && words_are_finite(load(packed + c * capacity + r));
  return finite;
}

inline void rescale_columns(const DownProduct& p) {
  bool ones = true;
  for (int x = 0; x < kPanel; x += kLanes)
    ones = ones && bits_of(equal(load(p.rescale + x), splat(1))) == kEvery;
  if (ones) return;
  for (std::int64_t d = 0; d < p.padded; ++d)
    for (int x = 0; x < kPanel; x += kLanes) {
      float* at = p.x + d * kPanel + x;
      store(at, load(at) * load(p.rescale + x));
    }
}

template <bool kAdd, class Narrow>
FOVEA_INLINE void multiply_down(const DownProduct& p, Narrow narrow) {
  Blocks<kAdd> blocks;
  for (std::int64_t i = 0; i < p.columns; i += kBlockRows) {
    const Span some = narrow(i, lesser(kBlockRows, p.columns - i));
    if (some.empty()) continue;
    const float* y = p.y + some.begin / kPack * p.y_row + i;
    const float* z = p.z + p.z_first + some.begin / kPack;
    const std::int64_t depth = words(some.end - some.begin);
    for (std::int64_t d = 0; d < p.padded; d += kBlockRows)
      blocks.multiply(
          p.padded - d, p.columns - i,
          {z + d * p.z_capacity, p.z_capacity, y, p.y_row, depth, p.x + d * kPanel + i, kPanel});
  }
  blocks.finish();
}

template <class Narrow, class Step>
FOVEA_INLINE void add_down(const DownProduct& p, Narrow narrow, Step) {
  if (p.first) return multiply_down<false>(p, narrow);
  if (p.rescale != nullptr) rescale_columns(p);
  multiply_down<true>(p, narrow);
}

/// seen[k]: the columns of Y that element k of the sum is visible to; null: all.
inline void add_down_visible(const DownProduct& p, const std::uint64_t* seen) {
  if (p.rescale != nullptr) rescale_columns(p);
  for (std::int64_t d = 0; d < p.padded; ++d)
    for (std::int64_t k = 0; k < p.depth; ++k) {
      const std::int64_t word = k / kPack;
      const Vec value = half_of(splat(p.z[d * p.z_capacity + p.z_first + word]), k);
      const std::uint64_t columns = seen == nullptr ? first_bits(p.columns) : seen[k];
      for (int x = 0; x < kPanel; x += kLanes) {
        float* at = p.x + d * kPanel + x;
        const Vec weight = half_of(load(p.y + word * p.y_row + x), k);
        store(at, fma(weight, value, load(at)), lanes_of(columns >> x));
      }
    }
}

/// The rows of X, of panels that adjoin; to be asked for in their order.
class RowsOfSums {
 public:
  /// turned: room for [16, padded].
  RowsOfSums(const float* x, std::int64_t padded, float* turned)
      : x_(x), padded_(padded), turned_(turned) {}
  float* at(std::int64_t row) const {
    if (row % kLanes == 0) {
      const float* columns = x_ + row / kPanel * kPanel * padded_ + row % kPanel;
      for (std::int64_t d = 0; d < padded_; d += kLanes)
        transpose_block(columns + d * kPanel, kPanel, turned_ + d, padded_);
    }
    return turned_ + row % kLanes * padded_;
  }

 private:
  const float* x_;
  std::int64_t padded_;
  float* turned_;
};

/// C = factor * AB, or C += that.
template <Into kInto>
FOVEA_INLINE void multiply_tile(int rows, int vecs, const TileArgs& t) {
  static_assert(kInto == Into::kFactorStore || kInto == Into::kFactorAdd);
  alignas(64) float block[kBlockRows * kBlockRows];
  const Vec factor = splat(t.factor);
  for (int v = 0; v < vecs; v += 2) {
    const int here = vecs - v < 2 ? 1 : 2;
    Blocks<false> blocks;
    blocks.multiply(rows, here * kLanes,
                    {t.a, t.a_row, t.b + v * kLanes, t.b_row, t.depth, block, kBlockRows});
    blocks.finish();
    for (int r = 0; r < rows; ++r)
      for (int w = 0; w < here; ++w) {
        float* c = t.c + r * t.c_row + (v + w) * kLanes;
        const Vec product = load(block + r * kBlockRows + w * kLanes);
        store(c, kInto == Into::kFactorStore ? product * factor : fma(product, factor, load(c)));
      }
  }
}

}  // namespace
}  // namespace fovea::cpu
