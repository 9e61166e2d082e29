// Rows of up to 512 elements in f32, held by some lanes of a warp: how they are read, turned by the
// prologue and written. For kernel sources.
//
// 4, 8, 16 or 32 lanes share a row; each holds one or two pieces of 8 adjoining elements, which are
// 16 bytes of a 16-bit type. Lane l of n holds elements (p n + l) 8 ... of piece p.
#pragma once

#include "contract/plain_rows.h"
#include "cuda/device/copy.h"
#include "cuda/device/numbers.h"
#include "cuda/device/thread.h"
#include "cuda/woven_sums.h"

namespace fovea::cuda::FOVEA_WORLD {
namespace {

constexpr int kPiece = 8;

/// The lanes that share a row.
struct RowLanes {
  int count;   ///< a power of two
  int lane;    ///< this thread among them
  int group;   ///< which row of the block's this thread works at
  int groups;  ///< rows that the block works at

  FOVEA_DEVICE int column(int piece) const { return (piece * count + lane) * kPiece; }
};

FOVEA_DEVICE RowLanes row_lanes(int width) {
  int shift = 2;
  while (shift < 5 && (kPiece << shift) < width) ++shift;
  const int count = 1 << shift, thread = thread_index();
  return {count, thread & (count - 1), thread >> shift, block_threads() >> shift};
}

template <int kPieces>
struct Row {
  float at[kPieces][kPiece];
};

/// Over the lanes of a row, the same in each. All lanes of the warp take part.
FOVEA_DEVICE float sum_lanes(float x, int count) {
  for (int mask = count >> 1; mask > 0; mask >>= 1) x += shuffle_xor(x, mask);
  return x;
}
FOVEA_DEVICE bool any_lane(bool x, int count) {
  int some = x ? 1 : 0;
  for (int mask = count >> 1; mask > 0; mask >>= 1) some |= shuffle_xor(some, mask);
  return some != 0;
}

FOVEA_DEVICE bool aligned_16(const void* at) {
  return (reinterpret_cast<std::uintptr_t>(at) & 15) == 0;
}

template <class T>
FOVEA_DEVICE void widen_words(const Words4& words, float (&to)[kPiece]) {
  FOVEA_UNROLL
  for (int n = 0; n < 4; ++n) {
    to[2 * n] = low_half<T>(words.w[n]);
    to[2 * n + 1] = high_half<T>(words.w[n]);
  }
}
template <class T>
FOVEA_DEVICE Words4 narrow_words(const float (&x)[kPiece]) {
  Words4 words;
  FOVEA_UNROLL
  for (int n = 0; n < 4; ++n) words.w[n] = pack<T>(x[2 * n], x[2 * n + 1]);
  return words;
}

/// Elements first, first + 1, ... of a vector; 0 for those from `count` on.
FOVEA_DEVICE void load_piece(const void* data, plain::Element element, std::int64_t stride,
                             std::int64_t first, int count, float (&to)[kPiece]) {
  const char* at = static_cast<const char*>(data) + first * stride * plain::size_of(element);
  if (stride == 1 && count >= kPiece && aligned_16(at)) {
    if (element == plain::Element::bf16) return widen_words<Bf16>(load_16(at), to);
    if (element == plain::Element::f16) return widen_words<F16>(load_16(at), to);
    if (element == plain::Element::f32) {
      const Words4 low = load_16(at), high = load_16(at + 16);
      FOVEA_UNROLL
      for (int n = 0; n < 4; ++n) {
        to[n] = bits_to_float(low.w[n]);
        to[4 + n] = bits_to_float(high.w[n]);
      }
      return;
    }
  }
  FOVEA_UNROLL
  for (int n = 0; n < kPiece; ++n) to[n] = n < count ? load_element(at, element, n * stride) : 0;
}

/// The first `count` of a piece become elements first, first + 1, ... of a vector.
FOVEA_DEVICE void store_piece(void* data, plain::Element element, std::int64_t stride,
                              std::int64_t first, int count, const float (&x)[kPiece]) {
  char* at = static_cast<char*>(data) + first * stride * plain::size_of(element);
  if (stride == 1 && count >= kPiece && aligned_16(at)) {
    if (element == plain::Element::bf16) return store_16(at, narrow_words<Bf16>(x));
    if (element == plain::Element::f16) return store_16(at, narrow_words<F16>(x));
    if (element == plain::Element::f32) {
      Words4 low, high;
      FOVEA_UNROLL
      for (int n = 0; n < 4; ++n) {
        low.w[n] = float_to_bits(x[n]);
        high.w[n] = float_to_bits(x[4 + n]);
      }
      store_16(at, low);
      return store_16(at + 16, high);
    }
  }
  FOVEA_UNROLL
  for (int n = 0; n < kPiece; ++n)
    if (n < count) store_element(at, element, n * stride, x[n]);
}

/// A row in memory; what it is multiplied by on the way to f32: a factor and a vector of weights.
struct RowReader {
  const void* data = nullptr;
  plain::Element element = plain::Element::f32;
  std::int64_t stride = 1;
  int width = 0;
  float factor = 1;
  plain::Floats weights;  ///< absent: ones
  bool woven = false;     ///< f32 sums that lie as woven_sums.h says

  FOVEA_DEVICE void multiply(int column, float (&x)[kPiece]) const {
    float w[kPiece];
    if (weights.data != nullptr)
      load_piece(weights.data, weights.element, weights.stride, column, width - column, w);
    FOVEA_UNROLL
    for (int n = 0; n < kPiece; ++n) x[n] *= weights.data != nullptr ? factor * w[n] : factor;
  }
  FOVEA_DEVICE void piece(int column, float (&x)[kPiece]) const {
    if (woven) {
      const float* from = static_cast<const float*>(data) + woven_column(column);
      FOVEA_UNROLL
      for (int n = 0; n < kPiece; n += 2) {
        const Floats2 pair = load_8(from + 2 * n);
        x[n] = column + n < width ? pair.x0 : 0;
        x[n + 1] = column + n + 1 < width ? pair.x1 : 0;
      }
    } else {
      load_piece(data, element, stride, column, width - column, x);
    }
    multiply(column, x);
  }
  FOVEA_DEVICE float at(int column) const {
    if (woven) return static_cast<const float*>(data)[woven_column(column)] * factor;
    const float w = weights.data != nullptr
                        ? load_element(weights.data, weights.element, column * weights.stride)
                        : 1;
    return load_element(data, element, column * stride) * (factor * w);
  }
};

FOVEA_DEVICE RowReader reader_of(const plain::Run<const char*>& run, int width) {
  RowReader reader;
  reader.data = run.data;
  reader.element = run.element;
  reader.stride = run.column;
  reader.width = width;
  return reader;
}

template <int kPieces>
FOVEA_DEVICE void read_row(const RowReader& reader, const RowLanes& lanes, bool reads,
                           Row<kPieces>& row) {
  FOVEA_UNROLL
  for (int p = 0; p < kPieces; ++p) {
    const int column = lanes.column(p);
    FOVEA_UNROLL
    for (int n = 0; n < kPiece; ++n) row.at[p][n] = 0;
    if (reads && column < reader.width) reader.piece(column, row.at[p]);
  }
}

/// 1 / sqrt(mean x^2 + eps). All lanes of the warp take part.
template <int kPieces>
FOVEA_DEVICE float inverse_rms(const Row<kPieces>& x, const RowLanes& lanes, int width, float eps) {
  float sum = 0;
  FOVEA_UNROLL
  for (int p = 0; p < kPieces; ++p) {
    FOVEA_UNROLL
    for (int n = 0; n < kPiece; ++n) sum = fma(x.at[p][n], x.at[p][n], sum);
  }
  return 1.0f / ::sqrtf(sum_lanes(sum, lanes.count) / static_cast<float>(width) + eps);
}

/// The rows of cos and sin that one position reads.
struct AngleRows {
  const char *cos, *sin;
};
FOVEA_DEVICE const char* angle_row(const plain::Angles& table, std::int64_t b, std::int64_t at) {
  const std::int64_t row = plain::clamp(at, 0, table.rows - 1);
  return static_cast<const char*>(table.data) +
         (b * table.batch + row * table.row) * plain::size_of(table.element);
}
/// Positions beyond the table read its last row.
FOVEA_DEVICE AngleRows angle_rows(const plain::Prologue& p, std::int64_t b, std::int64_t row) {
  std::int64_t at = plain::Band::shift(row, p.offset);
  if (p.offsets.data != nullptr)
    at = plain::Band::shift(at, plain::integer_at(p.offsets, b * p.offsets.stride));
  return {angle_row(p.cos, b, at), angle_row(p.sin, b, at)};
}

/// Rotates the piece x from `column` on; sign -1: by the transpose. row: where all of the row is to
/// be read, for pairs whose other element another lane holds.
FOVEA_DEVICE void rotate_piece(const plain::Prologue& p, const AngleRows& angles,
                               const RowReader& row, int column, float sign, float (&x)[kPiece]) {
  const int rotary_dim = static_cast<int>(p.rotary_dim), half = rotary_dim / 2;
  if (column >= rotary_dim) return;
  if (p.interleaved) {
    FOVEA_UNROLL
    for (int n = 0; n < kPiece; n += 2) {
      if (column + n >= rotary_dim) break;
      const int entry = p.duplicated ? column + n : (column + n) / 2;
      const float c = load_element(angles.cos, p.cos.element, entry * p.cos.column);
      const float s = sign * load_element(angles.sin, p.sin.element, entry * p.sin.column);
      const float a = x[n], b = x[n + 1];
      x[n] = a * c - b * s;
      x[n + 1] = a * s + b * c;
    }
    return;
  }
  float other[kPiece], c[kPiece], s[kPiece];
  if (half % kPiece == 0) {
    const bool first = column < half;
    const int entry = first ? column : column - half;
    row.piece(first ? column + half : entry, other);
    load_piece(angles.cos, p.cos.element, p.cos.column, entry, kPiece, c);
    load_piece(angles.sin, p.sin.element, p.sin.column, entry, kPiece, s);
    FOVEA_UNROLL
    for (int n = 0; n < kPiece; ++n)
      x[n] =
          first ? x[n] * c[n] - other[n] * (sign * s[n]) : other[n] * (sign * s[n]) + x[n] * c[n];
    return;
  }
  FOVEA_UNROLL
  for (int n = 0; n < kPiece; ++n) {
    const int d = column + n;
    if (d >= rotary_dim) break;
    const bool first = d < half;
    const int entry = first ? d : d - half;
    const float turn = sign * load_element(angles.sin, p.sin.element, entry * p.sin.column);
    const float partner = row.at(first ? d + half : entry);
    x[n] = x[n] * load_element(angles.cos, p.cos.element, entry * p.cos.column) +
           partner * (first ? -turn : turn);
  }
}

}  // namespace
}  // namespace fovea::cuda::FOVEA_WORLD
