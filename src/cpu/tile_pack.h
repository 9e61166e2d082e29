// Loads rows of tensors into the packed layouts that register tiles read, and the band's
// arithmetic. The one place where elements of inputs are read for the matrix products.
//
// Columns: [width / kTileCols, words(rows), kTileCols], the tail of the last panel of columns zero.
// Across:  [rows / kTileCols, words(width), kTileCols]: transposed, rows beyond the last zero.
#pragma once

#include "contract/plain_rows.h"
#include "cpu/flash_args.h"
#include "cpu/tile_matmul.h"

namespace fovea::cpu {
namespace {

FOVEA_INLINE std::int64_t round_up(std::int64_t n, std::int64_t to) {
  return (n + to - 1) / to * to;
}

/// Rows of one head of a tensor.
struct Rows {
  const float* data;
  std::int64_t row, column;

  FOVEA_INLINE const float* at(std::int64_t n) const { return data + n * row; }
  FOVEA_INLINE Rows from(std::int64_t n) const { return {data + n * row, row, column}; }
};
FOVEA_INLINE Rows rows_of(const Input& x, std::int64_t b, std::int64_t h) {
  return {x.data + b * x.batch + h * x.head, x.row, x.column};
}

/// Zeros behind the words of `rows` rows, to the end of a whole step [.., kPanel].
FOVEA_INLINE void fill_words(float* to, std::int64_t row, std::int64_t rows) {
  for (std::int64_t r = (rows + kPack - 1) / kPack; r < words(rows); ++r)
    for (std::int64_t c = 0; c < kPanel; c += kLanes) store(to + r * row + c, zero());
}

#if defined(__AVX512BF16__)

/// Elements c to c + 31 of rows r and r + 1, paired; 0 beyond the last row or column.
FOVEA_INLINE void pair_of_rows(Rows from, std::int64_t rows, std::int64_t width, std::int64_t r,
                               std::int64_t c, Vec& low, Vec& high) {
  const __m512i low_half =
      _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                       37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high_half = _mm512_add_epi16(low_half, _mm512_set1_epi16(16));
  const std::int64_t here = lesser(32, width - c);
  const auto some = static_cast<__mmask32>(here == 32 ? ~0u : (1u << here) - 1u);
  const auto row = [&](std::int64_t n) {
    return _mm512_maskz_loadu_epi16(n < rows ? some : 0, from.at(lesser(n, rows - 1)) + c / 2);
  };
  const __m512i even = row(r), odd = row(r + 1);
  low = _mm512_castsi512_ps(_mm512_permutex2var_epi16(even, low_half, odd));
  high = _mm512_castsi512_ps(_mm512_permutex2var_epi16(even, high_half, odd));
}

/// Rows of words to columns of pairs of rows; `width` counts elements, `capacity` words.
inline void pack_columns(Rows from, std::int64_t rows, std::int64_t width, float* to,
                         std::int64_t capacity) {
  for (std::int64_t c = 0; c < width; c += 32)
    for (std::int64_t r = 0; r < words(rows); ++r) {
      float* panel = to + c / kTileCols * kTileCols * capacity + r * kTileCols + c % kTileCols;
      Vec low, high;
      pair_of_rows(from, rows, width, 2 * r, c, low, high);
      store(panel, low);
      store(panel + kLanes, high);
    }
  // The rest of the last panel.
  for (std::int64_t c = round_up(width, 32); c < round_up(width, kTileCols); c += kLanes)
    for (std::int64_t r = 0; r < words(rows); ++r)
      store(to + c / kTileCols * kTileCols * capacity + r * kTileCols + c % kTileCols, zero());
}

/// Lanes of a word each: an element of one row, and of the next.
FOVEA_INLINE Vec paired(Vec even, Vec odd) {
  const __m512i in_turn =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const auto both_rows = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
  return _mm512_castsi512_ps(_mm512_permutexvar_epi16(in_turn, both_rows));
}

/// f32 [rows, kPanel] to pairs of rows [words(rows), kPanel], `row` apart as well; to may be x.
inline void pair_rows(const float* x, std::int64_t rows, std::int64_t row, float* to) {
  for (std::int64_t r = 0; r < rows; r += 2)
    for (std::int64_t c = 0; c < 64; c += kLanes) {
      const Vec even = load(x + r * row + c);
      store(to + r / 2 * row + c,
            paired(even, r + 1 < rows ? load(x + (r + 1) * row + c) : zero()));
    }
  fill_words(to, row, rows);
}

/// f32 [rows, kPanel] to pairs along the row [rows, kPanel / 2].
inline void pair_columns(const float* x, std::int64_t rows, std::int64_t row, float* to,
                         std::int64_t to_row) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < 64; c += 2 * kLanes) {
      const float* at = x + r * row + c;
      const auto pairs =
          reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(load(at + kLanes), load(at)));
      _mm512_storeu_si512(to + r * to_row + c / 2, pairs);
    }
}

#else

/// A word is an element.
FOVEA_INLINE Vec paired(Vec element, Vec) { return element; }

/// `rows` x `width` elements into columns of `capacity` rows each.
inline void pack_columns(Rows from, std::int64_t rows, std::int64_t width, float* to,
                         std::int64_t capacity) {
  for (std::int64_t c = 0; c < width; c += kTileCols) {
    const std::int64_t here = lesser(kTileCols, width - c);
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* source = from.at(r) + c * from.column;
      float* panel = to + c * capacity + r * kTileCols;
      if (from.column == 1) {
        std::int64_t x = 0;
        for (; x + kLanes <= here; x += kLanes) store(panel + x, load(source + x));
        if (x < here) {
          store(panel + x, load(source + x, first_lanes(static_cast<int>(here - x))));
          x += kLanes;
        }
        for (; x < kTileCols; x += kLanes) store(panel + x, zero());
      } else {
        for (std::int64_t x = 0; x < kTileCols; ++x)
          panel[x] = x < here ? source[x * from.column] : 0.0f;
      }
    }
  }
}

#endif

/// `rows` x `width` words, transposed, for panels of kTileCols rows up to `padded_rows`.
inline void pack_across(Rows from, std::int64_t rows, std::int64_t width, float* to,
                        std::int64_t padded_rows) {
  for (std::int64_t r = 0; r < padded_rows; r += kLanes) {
    float* panel = to + r / kTileCols * kTileCols * width + r % kTileCols;
    std::int64_t c = 0;
    if (from.column == 1 && r + kLanes <= rows)
      for (; c + kLanes <= width; c += kLanes)
        transpose_block(from.at(r) + c, from.row, panel + c * kTileCols, kTileCols);
    for (; c < width; ++c)
      for (std::int64_t x = 0; x < kLanes; ++x)
        panel[c * kTileCols + x] = r + x < rows ? from.at(r + x)[c * from.column] : 0.0f;
  }
}

/// What is found out when it is first asked for.
enum class Answer { unknown, yes, no };

/// Whether words are free of NaN and infinity.
FOVEA_INLINE bool words_are_finite(Vec x) {
  bool finite = true;
  for (int half = 0; half < kPack; ++half)
    finite = finite && bits_of(equal(half_of(x, half) * zero(), zero())) == (1u << kLanes) - 1u;
  return finite;
}

/// Whether the first rows of columns packed with `capacity` words are.
inline bool columns_are_finite(const float* packed, std::int64_t width, std::int64_t capacity,
                               std::int64_t rows) {
  bool finite = true;
  for (std::int64_t c = 0; c < width; c += kTileCols)
    for (std::int64_t r = 0; r < words(rows); ++r)
      for (std::int64_t x = 0; x < kTileCols; x += kLanes)
        finite = finite && words_are_finite(load(packed + c * capacity + r * kTileCols + x));
  return finite;
}

/// What look() finds, found out once.
template <class Look>
FOVEA_INLINE bool known(Answer& answer, Look look) {
  if (answer == Answer::unknown) answer = look() ? Answer::yes : Answer::no;
  return answer == Answer::yes;
}

/// `some` of `all`, widened to begin with a whole step of a sum.
FOVEA_INLINE Span whole_steps(Span some, Span all) {
  return {all.begin + (some.begin - all.begin) / kDepth * kDepth, some.end};
}

/// Asks for rows that are needed later, line by line, spread over the work that comes before.
class Prefetch {
 public:
  Prefetch() = default;
  /// Two operands' rows, to be fetched within `steps` calls of step().
  FOVEA_INLINE Prefetch(Rows a, std::int64_t a_width, Rows b, std::int64_t b_width,
                        std::int64_t rows, std::int64_t steps)
      : a_(a), b_(b), a_width_(a_width), b_width_(b_width), left_(2 * rows), steps_(steps) {
    constexpr std::int64_t kLine = 16;
    lines_ = rows * ((a_width + kLine - 1) / kLine + (b_width + kLine - 1) / kLine);
    if (a.column != 1 || b.column != 1) left_ = 0;
  }
  FOVEA_INLINE void step() {
    for (due_ += lines_; due_ >= steps_ && left_ > 0; due_ -= steps_) {
      __builtin_prefetch(a_.data + at_, 0, 2);
      at_ += 16;
      if (at_ < a_width_) continue;
      // Take turns between the operands.
      at_ = 0;
      --left_;
      const Rows next{a_.data + a_.row, a_.row, 1};
      const std::int64_t width = a_width_;
      a_ = b_;
      a_width_ = b_width_;
      b_ = next;
      b_width_ = width;
    }
  }

 private:
  Rows a_{}, b_{};
  std::int64_t a_width_ = 0, b_width_ = 0;
  std::int64_t left_ = 0, steps_ = 1;
  std::int64_t lines_ = 0, due_ = 0, at_ = 0;
};

}  // namespace
}  // namespace fovea::cpu
