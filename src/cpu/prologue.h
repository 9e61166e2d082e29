// QK-norm and RoPE of one row in f32, and the way back for its gradient.
//
//   y = x w / sqrt(mean(x^2) + eps)                                     RMSNorm over the row
//   a' = a cos - b sin,  b' = a sin + b cos                             for each pair (a, b)
//
// Back: rotate by the transpose (sin negated); then with g = dy o w and r = 1 / sqrt(...)
//   dx = r (g - x r^2 mean(x o g)),   dw += r x o dy
#pragma once

#include "cpu/simd_elements.h"
#include "cpu/tile_pack.h"

namespace fovea::cpu {
namespace {

/// The longest row: kMaxHeadDim.
constexpr std::int64_t kMaxWidth = 512;

FOVEA_INLINE float dot_rows(const float* x, const float* y, std::int64_t n) {
  Vec sums = zero();
  for (std::int64_t d = 0; d < n; d += kLanes) {
    const Mask some = first_lanes(static_cast<int>(lesser(n - d, kLanes)));
    sums = fma(load(x + d, some), load(y + d, some), sums);
  }
  return sum(sums);
}

FOVEA_INLINE float inverse_rms(const float* x, std::int64_t n, float eps) {
  return 1.0f / __builtin_sqrtf(dot_rows(x, x, n) / static_cast<float>(n) + eps);
}

/// f32 values: where they lie, or converted into `to`.
FOVEA_INLINE const float* as_f32(Element element, const void* data, std::int64_t step,
                                 std::int64_t n, float* to) {
  if (element == Element::f32 && step == 1) return static_cast<const float*>(data);
  widen_row(element, data, step, n, to);
  return to;
}

/// The table's row for position `row` of sequence b; rows beyond the table read its last.
inline const float* angles_of(const Prologue& p, const Angles& table, std::int64_t b,
                              std::int64_t row, float* to) {
  std::int64_t at = Band::shift(row, p.offset);
  if (p.offsets.data != nullptr) at = Band::shift(at, integer_at(p.offsets, b * p.offsets.stride));
  at = clamp(at, 0, table.rows - 1);
  const std::int64_t place = b * table.batch + at * table.row;
  return as_f32(table.element,
                static_cast<const char*>(table.data) + place * size_of(table.element), table.column,
                p.duplicated ? p.rotary_dim : p.rotary_dim / 2, to);
}

template <bool kInterleaved, bool kDuplicated>
void rotate_pairs(float* x, const float* cos, const float* sin, std::int64_t pairs, float sign) {
  for (std::int64_t n = 0; n < pairs; ++n) {
    const std::int64_t first = kInterleaved ? 2 * n : n;
    const std::int64_t second = kInterleaved ? 2 * n + 1 : n + pairs;
    const float c = cos[kDuplicated ? first : n], s = sign * sin[kDuplicated ? first : n];
    const float a = x[first], b = x[second];
    x[first] = a * c - b * s;
    x[second] = a * s + b * c;
  }
}

inline void rotate_row(const Prologue& p, std::int64_t b, std::int64_t row, float sign, float* x) {
  alignas(64) float cos_row[kMaxWidth], sin_row[kMaxWidth];
  const float* cos = angles_of(p, p.cos, b, row, cos_row);
  const float* sin = angles_of(p, p.sin, b, row, sin_row);
  const std::int64_t pairs = p.rotary_dim / 2;
  if (p.interleaved)
    (p.duplicated ? rotate_pairs<true, true> : rotate_pairs<true, false>)(x, cos, sin, pairs, sign);
  else
    (p.duplicated ? rotate_pairs<false, true> : rotate_pairs<false, false>)(x, cos, sin, pairs,
                                                                            sign);
}

/// The norm weights of a segment; null for ones.
FOVEA_INLINE const float* weights_of(const Prologue& p, int segment, std::int64_t width,
                                     float* to) {
  const Floats& w = p.weights[segment];
  return w.data == nullptr ? nullptr : as_f32(w.element, w.data, w.stride, width, to);
}

/// x -> x^, for a row of `segment`.
inline void apply_prologue(const Prologue& p, int segment, std::int64_t b, std::int64_t row,
                           std::int64_t width, float* x) {
  if (p.norm) {
    alignas(64) float weight_row[kMaxWidth];
    const float* w = weights_of(p, segment, width, weight_row);
    const float r = inverse_rms(x, width, p.eps);
    for (std::int64_t d = 0; d < width; ++d) x[d] *= w != nullptr ? r * w[d] : r;
  }
  if (p.rotate) rotate_row(p, b, row, 1, x);
}

/// The gradient of x^ -> that of x, in place; adds to dweights [width] unless it is null. x is the
/// row as it came in.
inline void reverse_prologue(const Prologue& p, int segment, std::int64_t b, std::int64_t row,
                             std::int64_t width, const float* x, float* gradient, float* dweights) {
  if (p.rotate) rotate_row(p, b, row, -1, gradient);
  if (!p.norm) return;
  alignas(64) float weight_row[kMaxWidth];
  const float* w = weights_of(p, segment, width, weight_row);
  const float r = inverse_rms(x, width, p.eps);
  if (dweights != nullptr)
    for (std::int64_t d = 0; d < width; ++d) dweights[d] += r * x[d] * gradient[d];
  if (w != nullptr)
    for (std::int64_t d = 0; d < width; ++d) gradient[d] *= w[d];
  const float along = dot_rows(x, gradient, width) * r * r / static_cast<float>(width);
  for (std::int64_t d = 0; d < width; ++d) gradient[d] = r * (gradient[d] - x[d] * along);
}

/// Rows [rows.begin, rows.end) of one head, ready for the products: where they lie where that can
/// be, else in `to` [rows, width].
inline Rows stage(const Source& x, const Place& place, Span rows, float* to) {
  const bool changed = x.prologue.norm || x.prologue.rotate;
  const bool as_it_is = x.compute == Element::f32 && !changed;
  float* at = to;
  for (std::int64_t row = rows.begin; row < rows.end;) {
    const Run<const char*> run = source_run(x, place, row, rows.end - row);
    if (as_it_is && run.element == Element::f32 && (run.column == 1 || x.width == 1) &&
        run.count == rows.end - rows.begin)
      return {reinterpret_cast<const float*>(run.data), run.row, 1};
    for (std::int64_t n = 0; n < run.count; ++n, ++row, at += x.width) {
      widen_row(run.element, run.data + n * run.row * size_of(run.element), run.column, x.width,
                at);
      if (changed) apply_prologue(x.prologue, run.segment, place.batch, row, x.width, at);
      if (changed || run.element != x.compute) round_row(x.compute, at, x.width);
    }
  }
  return {to, x.width, 1};
}

/// The same as words, for the products: [rows, words(width)]. `to` has room for whole tile
/// registers of rows, and they are in place in whole ones only.
#if defined(__AVX512BF16__)
inline Rows stage_words(const Source& x, const Place& place, Span rows, float* to) {
  const bool changed = x.prologue.norm || x.prologue.rotate;
  constexpr std::int64_t kRowsAtOnce = kDepth > kPack ? 16 : 1;
  const std::int64_t row_words = words(x.width);
  float* at = to;
  for (std::int64_t row = rows.begin; row < rows.end;) {
    const Run<const char*> run = source_run(x, place, row, rows.end - row);
    const bool as_it_is = !changed && run.element == Element::bf16 && run.column == 1;
    if (as_it_is && x.width % kDepth == 0 && run.row % kPack == 0 &&
        reinterpret_cast<std::uintptr_t>(run.data) % sizeof(float) == 0 &&
        run.count == rows.end - rows.begin && run.count % kRowsAtOnce == 0)
      return {reinterpret_cast<const float*>(run.data), run.row / kPack, 1};
    for (std::int64_t n = 0; n < run.count; ++n, ++row, at += row_words) {
      const char* source = run.data + n * run.row * size_of(run.element);
      if (as_it_is) {
        for (std::int64_t w = x.width / kDepth * (kDepth / kPack); w < row_words; ++w) at[w] = 0;
        __builtin_memcpy(at, source, static_cast<std::size_t>(2 * x.width));
        continue;
      }
      alignas(64) float values[kMaxWidth + kDepth];
      widen_row(run.element, source, run.column, x.width, values);
      if (changed) apply_prologue(x.prologue, run.segment, place.batch, row, x.width, values);
      for (std::int64_t d = x.width; d < kPack * row_words; ++d) values[d] = 0;
      narrow_row(values, kPack * row_words, Element::bf16, at, 1);
    }
  }
  return {to, row_words, 1};
}
#else
inline Rows stage_words(const Source& x, const Place& place, Span rows, float* to) {
  return stage(x, place, rows, to);
}
#endif

/// Up to kPanel rows of one head, which need not lie at one distance; behind them the last one
/// again. Elements of a row adjoin.
struct RowList {
  const char* at[kPanel];
  Element element;
  bool in_place;

  void pad(std::int64_t count) {
    for (std::int64_t n = count; n < kPanel; ++n) at[n] = at[count - 1];
  }
};

/// Lists one or more rows where they lie, if they can be widened to f32 from there without a
/// further step; rows of 16-bit elements by pairs.
inline void list_rows(const Source& x, const Place& place, Span rows, RowList& list) {
  list.in_place = false;
  if (x.prologue.norm || x.prologue.rotate) return;
  const char** at = list.at;
  for (std::int64_t row = rows.begin; row < rows.end;) {
    const Run<const char*> run = source_run(x, place, row, rows.end - row);
    if (row == rows.begin) list.element = run.element;
    const std::int64_t size = size_of(run.element);
    if (run.element != list.element || size == 8 || (size == 2 && x.width % 2 != 0) ||
        (run.element != x.compute && x.compute != Element::f32) ||
        (run.column != 1 && x.width != 1))
      return;
    for (std::int64_t n = 0; n < run.count; ++n, ++row) *at++ = run.data + n * run.row * size;
  }
  list.in_place = true;
  list.pad(rows.end - rows.begin);
}
/// The same rows in f32, in `to` [rows, width].
inline void stage_list(const Source& x, const Place& place, Span rows, float* to, RowList& list) {
  const Rows staged = stage(x, place, rows, to);
  for (std::int64_t n = 0; n < rows.end - rows.begin; ++n)
    list.at[n] = reinterpret_cast<const char*>(staged.at(n));
  list.element = Element::f32;
  list.pad(rows.end - rows.begin);
}

/// Rows from `row` on of an operand whose in_place is true.
FOVEA_INLINE Rows rows_in_place(const Source& x, const Place& place, std::int64_t row) {
  const Run<const char*> run = run_at(x.segments, place, row, 1);
  return {reinterpret_cast<const float*>(run.data), run.row, 1};
}

/// `values` [width] to a row of a result, in its own dtype, where it is wanted.
inline void write_row(const Sink& sink, const Place& place, std::int64_t row, const float* values) {
  const Run<char*> run = run_at(sink.segments, place, row, 1);
  if (run.data != nullptr) narrow_row(values, sink.width, run.element, run.data, run.column);
}

/// The gradient of a row of x^, in place, becomes that of x and is written; adds to the gradients
/// of the norm's weights [segments, width] unless they are null.
inline void write_gradient(const Source& x, const Sink& sink, const Place& place, std::int64_t row,
                           float* gradient, float* dweights) {
  if (x.prologue.norm || x.prologue.rotate) {
    // A row that nobody sees may hold NaN, which 0 * x would carry into its gradient.
    bool zero = true;
    for (std::int64_t d = 0; d < x.width; ++d) zero = zero && gradient[d] == 0;
    const Run<const char*> run = source_run(x, place, row, 1);
    alignas(64) float came_in[kMaxWidth];
    widen_row(run.element, run.data, run.column, x.width, came_in);
    if (!zero)
      reverse_prologue(x.prologue, run.segment, place.batch, row, x.width, came_in, gradient,
                       dweights == nullptr ? nullptr : dweights + run.segment * x.width);
  }
  if (sink.segments.count > 0) write_row(sink, place, row, gradient);
}

}  // namespace
}  // namespace fovea::cpu
