// Products of tiles on tensor cores (mma.sync), in the four forms that attention needs and in
// every compute mode. A warp owns 16 * kM rows of the result; c[m][n][4] is the usual accumulator
// layout:
//
//   lane = 4 g + t:   c[m][n][0..1] = row 16 m + g,     columns 8 n + 2 t, + 1
//                     c[m][n][2..3] = row 16 m + g + 8, likewise
//
//   rows_by_rows          C += A B^T   A [rows, depth], B [columns, depth] in shared memory
//   rows_by_columns       C += A B     A [rows, terms], B [terms, columns] in shared memory
//   columns_by_columns    C += A^T B   A [terms, rows], B [terms, columns] in shared memory
//   registers_by_columns  C += P B     P accumulators [rows, terms], B [terms, columns] in shared
//                                      memory
//
// Rows of a tile lie 16 bytes further apart than their width, so that the eight rows that one
// ldmatrix reads, and the 32 words of a column-wise read, fall into different banks.
//
// Modes. InBf16, InF16: one product, f32 accumulation. InTf32: one product of operands rounded to
// 10 bits. InF32: every operand is the sum of two such numbers, and of the four products the three
// large ones are taken, of scores all four. Tensor cores cut sums off; sums in pieces of 16 terms,
// the small products in sums of their own, added up by ordinary additions, keep that near the
// rounding of f32.
#pragma once

#include "contract/float_types.h"
#include "cuda/device/matrix.h"
#include "cuda/device/numbers.h"
#include "cuda/device/shared.h"
#include "cuda/device/thread.h"

namespace fovea::cuda::FOVEA_WORLD {

struct InBf16 {
  using Element = Bf16;
  static constexpr plain::Element kElement = plain::Element::bf16;
};
struct InF16 {
  using Element = F16;
  static constexpr plain::Element kElement = plain::Element::f16;
};
struct InTf32 {
  using Element = float;
  static constexpr plain::Element kElement = plain::Element::f32;
};
struct InF32 {
  using Element = float;
  static constexpr plain::Element kElement = plain::Element::f32;
};

FOVEA_DEVICE float to_f32(float x) { return x; }
using fovea::to_f32;
template <class E>
FOVEA_DEVICE E from_f32(float x) {
  if constexpr (std::is_same_v<E, Bf16>) return to_bf16(x);
  if constexpr (std::is_same_v<E, F16>) return to_f16(x);
  if constexpr (std::is_same_v<E, float>) return x;
}

template <class Mode>
inline constexpr bool kIsWide = sizeof(typename Mode::Element) == 4;
/// A tile [rows, columns] in shared memory.
template <class E, int kRows, int kColumns>
struct Tile {
  using Element = E;
  static constexpr int kInChunk = 16 / static_cast<int>(sizeof(E));
  static constexpr int kStride = kColumns + kInChunk;
  static constexpr int kElements = kRows * kStride;
  static constexpr int kBytes = kElements * static_cast<int>(sizeof(E));
  Shared<E> data;

  FOVEA_DEVICE explicit Tile(int byte_offset) : data(shared_array<E>(byte_offset, kElements)) {}
  FOVEA_DEVICE static int at(int row, int column) { return row * kStride + column; }
};

/// An f32 as the sum of two numbers that tensor cores take whole.
struct Split {
  std::uint32_t high, low;
};
template <class Mode>
FOVEA_DEVICE Split split(float x) {
  Split s{};
  s.high = round_tf32(x);
  if constexpr (std::is_same_v<Mode, InF32>) s.low = round_tf32(x - bits_to_float(s.high));
  return s;
}

/// Steps of products of f32 that make a piece.
inline constexpr int kPiece = 2;

/// What a product is. An error of a score is a relative error of its weight, whose size is that of
/// the score: where scores are large, the smallest product counts. The transposed scores of
/// backward equal those of forward bit for bit.
enum class Product { scores, transposed_scores, other };

/// c[m][n] += sum over a piece of a[step][m] b[step]. Where an operand is infinite the small
/// products are 0 times infinity: then the large one alone says what the sum is.
template <class Mode, Product kProduct = Product::other, int kM, int kN>
FOVEA_DEVICE void add_piece(float (&c)[kM][kN][4], int n, const Split (&a)[kPiece][kM][4],
                            const Split (&b)[kPiece][2]) {
  float small[kM][4] = {}, large[kM][4] = {};
  FOVEA_UNROLL
  for (int k = 0; k < kPiece; ++k) {
    const std::uint32_t bh[2] = {b[k][0].high, b[k][1].high}, bl[2] = {b[k][0].low, b[k][1].low};
    FOVEA_UNROLL
    for (int m = 0; m < kM; ++m) {
      const Split(&x)[4] = a[k][m];
      const std::uint32_t ah[4] = {x[0].high, x[1].high, x[2].high, x[3].high};
      multiply_tf32(large[m], ah, bh);
      if constexpr (std::is_same_v<Mode, InF32>) {
        const std::uint32_t al[4] = {x[0].low, x[1].low, x[2].low, x[3].low};
        constexpr bool kSwapped = kProduct == Product::transposed_scores;
        if constexpr (kProduct != Product::other) multiply_tf32(small[m], al, bl);
        multiply_tf32(small[m], kSwapped ? ah : al, kSwapped ? bl : bh);
        multiply_tf32(small[m], kSwapped ? al : ah, kSwapped ? bh : bl);
      }
    }
  }
  FOVEA_UNROLL
  for (int m = 0; m < kM; ++m) {
    FOVEA_UNROLL
    for (int x = 0; x < 4; ++x) {
      float piece = large[m][x];
      if constexpr (std::is_same_v<Mode, InF32>)
        piece += small[m][x] - small[m][x] == 0 ? small[m][x] : 0.0f;
      c[m][n][x] += piece;
    }
  }
}

// Readers of fragments, four 8 x 8 matrices each; every lane names one row of a matrix. In f32 a
// row of a matrix is four numbers.

template <class T>
using ReaderOf = MatrixReader<typename T::Element>;

/// A [16 rows, 16 terms], f32 [16 rows, 8 terms], from [rows, terms]; or B [16 terms, 16 columns]
/// from [terms, columns], transposed.
template <class T>
FOVEA_DEVICE ReaderOf<T> reader_by_rows(const T& tile, int row, int column) {
  return {tile.data, T::at(row + lane() % 16, column + lane() / 16 * T::kInChunk)};
}
/// B [16 terms, 16 columns], f32 [8 terms, 16 columns], from [columns, terms]: two columns of 8,
/// b[0..1] and b[2..3]; or A [16 rows, 16 terms] from [terms, rows], transposed.
template <class T>
FOVEA_DEVICE ReaderOf<T> reader_by_columns(const T& tile, int row, int column) {
  return {tile.data,
          T::at(row + lane() % 8 + lane() / 16 * 8, column + lane() / 8 % 2 * T::kInChunk)};
}
template <class E, int kM, int kN>
FOVEA_DEVICE void multiply_pair(float (&c)[kM][kN][4], int n, const std::uint32_t (&a)[kM][4],
                                const std::uint32_t (&b)[4]) {
  const std::uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
  FOVEA_UNROLL
  for (int m = 0; m < kM; ++m) {
    multiply<E>(c[m][n], a[m], first);
    if (n + 1 < kN) multiply<E>(c[m][n + 1 < kN ? n + 1 : n], a[m], second);
  }
}

// Fragments of f32 tiles. Where the right operand is [terms, columns], a step's terms are taken in
// the order 0, 2, 4, 6, 1, 3, 5, 7, which is how accumulators hold them as left operands.

template <class Mode>
FOVEA_DEVICE void load_split(Split (&to)[4], const MatrixReader<float>& reader, int offset) {
  std::uint32_t words[4];
  reader.load(words, offset);
  FOVEA_UNROLL
  for (int x = 0; x < 4; ++x) to[x] = split<Mode>(bits_to_float(words[x]));
}
/// A [16 rows, 8 terms] from [rows, terms], for a right operand [terms, columns].
template <class Mode, class T>
FOVEA_DEVICE void load_left_in_order_split(Split (&a)[4], const T& tile, int row, int term) {
  const int g = lane() / 4, t = lane() % 4;
  FOVEA_UNROLL
  for (int x = 0; x < 4; ++x)
    a[x] = split<Mode>(tile.data[T::at(row + g + x % 2 * 8, term + 2 * t + x / 2)]);
}
/// The same from [terms, rows].
template <class Mode, class T>
FOVEA_DEVICE void load_left_transposed_split(Split (&a)[4], const T& tile, int row, int term) {
  const int g = lane() / 4, t = lane() % 4;
  FOVEA_UNROLL
  for (int x = 0; x < 4; ++x)
    a[x] = split<Mode>(tile.data[T::at(term + 2 * t + x / 2, row + g + x % 2 * 8)]);
}
template <class Mode, class T>
FOVEA_DEVICE void load_right_transposed_split(Split (&b)[2], const T& tile, int column, int term) {
  const int g = lane() / 4, t = lane() % 4;
  FOVEA_UNROLL
  for (int x = 0; x < 2; ++x) b[x] = split<Mode>(tile.data[T::at(term + 2 * t + x, column + g)]);
}

/// c += a piece of a times rows `term` and on of B [terms, columns], from column `column` on.
template <class Mode, int kM, int kN, class B>
FOVEA_DEVICE void add_columns(float (&c)[kM][kN][4], const Split (&a)[kPiece][kM][4], const B& b,
                              int term, int column) {
  FOVEA_UNROLL
  for (int n = 0; n < kN; ++n) {
    Split right[kPiece][2];
    FOVEA_UNROLL
    for (int s = 0; s < kPiece; ++s)
      load_right_transposed_split<Mode>(right[s], b, column + 8 * n, term + 8 * s);
    add_piece<Mode>(c, n, a, right);
  }
}
/// The same of a step in 16 bits; b: reader_by_rows of [terms, columns].
template <class B, int kM, int kN>
FOVEA_DEVICE void add_columns(float (&c)[kM][kN][4], const std::uint32_t (&a)[kM][4],
                              const ReaderOf<B>& b, int term) {
  FOVEA_UNROLL
  for (int n = 0; n < kN; n += 2) {
    std::uint32_t right[4];
    b.load_transposed(right, B::at(term, 8 * n));
    multiply_pair<typename B::Element>(c, n, a, right);
  }
}

// The products.

/// c += A[row.., :kDepth] B[column.., :kDepth]^T.
template <class Mode, int kDepth, Product kProduct = Product::other, int kM, int kN, class A,
          class B>
FOVEA_DEVICE void rows_by_rows(float (&c)[kM][kN][4], const A& a, int row, const B& b,
                               int column = 0) {
  static_assert(kN % 2 == 0);
  const auto lefts = reader_by_rows(a, row, 0);
  const auto rights = reader_by_columns(b, column, 0);
  if constexpr (!kIsWide<Mode>) {
    FOVEA_UNROLL
    for (int k = 0; k < kDepth; k += 16) {
      std::uint32_t left[kM][4];
      FOVEA_UNROLL
      for (int m = 0; m < kM; ++m) lefts.load(left[m], A::at(16 * m, k));
      FOVEA_UNROLL
      for (int n = 0; n < kN; n += 2) {
        std::uint32_t right[4];
        rights.load(right, B::at(8 * n, k));
        multiply_pair<typename Mode::Element>(c, n, left, right);
      }
    }
  } else {
    FOVEA_UNROLL
    for (int k = 0; k < kDepth; k += 8 * kPiece) {
      Split left[kPiece][kM][4];
      FOVEA_UNROLL
      for (int s = 0; s < kPiece; ++s) {
        FOVEA_UNROLL
        for (int m = 0; m < kM; ++m) load_split<Mode>(left[s][m], lefts, A::at(16 * m, k + 8 * s));
      }
      FOVEA_UNROLL
      for (int n = 0; n < kN; n += 2) {
        Split first[kPiece][2], second[kPiece][2];
        FOVEA_UNROLL
        for (int s = 0; s < kPiece; ++s) {
          Split both[4];
          load_split<Mode>(both, rights, B::at(8 * n, k + 8 * s));
          FOVEA_UNROLL
          for (int x = 0; x < 2; ++x) {
            first[s][x] = both[x];
            second[s][x] = both[2 + x];
          }
        }
        add_piece<Mode, kProduct>(c, n, left, first);
        add_piece<Mode, kProduct>(c, n + 1, left, second);
      }
    }
  }
}

/// Rows [row, row + 16 kM) of a 16-bit tile as left operands, to be used many times.
template <int kSteps, int kM, class A>
FOVEA_DEVICE void load_fragments(std::uint32_t (&to)[kSteps][kM][4], const A& a, int row) {
  const auto lefts = reader_by_rows(a, row, 0);
  FOVEA_UNROLL
  for (int k = 0; k < kSteps; ++k) {
    FOVEA_UNROLL
    for (int m = 0; m < kM; ++m) lefts.load(to[k][m], A::at(16 * m, 16 * k));
  }
}
/// c += A B[:, :16 kSteps]^T.
template <int kSteps, int kM, int kN, class B>
FOVEA_DEVICE void fragments_by_rows(float (&c)[kM][kN][4], const std::uint32_t (&a)[kSteps][kM][4],
                                    const B& b) {
  static_assert(kN % 2 == 0);
  const auto rights = reader_by_columns(b, 0, 0);
  FOVEA_UNROLL
  for (int k = 0; k < kSteps; ++k) {
    FOVEA_UNROLL
    for (int n = 0; n < kN; n += 2) {
      std::uint32_t right[4];
      rights.load(right, B::at(8 * n, 16 * k));
      multiply_pair<typename B::Element>(c, n, a[k], right);
    }
  }
}

/// c += P B: P [rows, 8 kK keys] as accumulators, B [keys, columns].
template <class Mode, int kM, int kK, int kN, class B>
FOVEA_DEVICE void registers_by_columns(float (&c)[kM][kN][4], const float (&p)[kM][kK][4],
                                       const B& b) {
  static_assert(kN % 2 == 0 && kK % 2 == 0);
  using Element = typename Mode::Element;
  if constexpr (!kIsWide<Mode>) {
    const auto rights = reader_by_rows(b, 0, 0);
    FOVEA_UNROLL
    for (int k = 0; k < kK; k += 2) {
      std::uint32_t left[kM][4];
      FOVEA_UNROLL
      for (int m = 0; m < kM; ++m) {
        left[m][0] = pack<Element>(p[m][k][0], p[m][k][1]);
        left[m][1] = pack<Element>(p[m][k][2], p[m][k][3]);
        left[m][2] = pack<Element>(p[m][k + 1][0], p[m][k + 1][1]);
        left[m][3] = pack<Element>(p[m][k + 1][2], p[m][k + 1][3]);
      }
      add_columns<B>(c, left, rights, 8 * k);
    }
  } else {
    static_assert(kK % kPiece == 0);
    FOVEA_UNROLL
    for (int k = 0; k < kK; k += kPiece) {
      Split left[kPiece][kM][4];
      FOVEA_UNROLL
      for (int s = 0; s < kPiece; ++s) {
        FOVEA_UNROLL
        for (int m = 0; m < kM; ++m) {
          left[s][m][0] = split<Mode>(p[m][k + s][0]);
          left[s][m][1] = split<Mode>(p[m][k + s][2]);
          left[s][m][2] = split<Mode>(p[m][k + s][1]);
          left[s][m][3] = split<Mode>(p[m][k + s][3]);
        }
      }
      add_columns<Mode>(c, left, b, 8 * k, 0);
    }
  }
}

/// c += A B[:, column..]: A [rows, terms] from row `row` on, or, kTransposed, A^T of [terms, rows].
template <class Mode, int kTerms, bool kTransposed, int kM, int kN, class A, class B>
FOVEA_DEVICE void tile_by_columns(float (&c)[kM][kN][4], const A& a, int row, const B& b,
                                  int column) {
  static_assert(kN % 2 == 0 && kTerms % 16 == 0);
  if constexpr (!kIsWide<Mode>) {
    const auto rights = reader_by_rows(b, 0, column);
    const auto lefts = kTransposed ? reader_by_columns(a, 0, row) : reader_by_rows(a, row, 0);
    FOVEA_UNROLL
    for (int k = 0; k < kTerms; k += 16) {
      std::uint32_t left[kM][4];
      FOVEA_UNROLL
      for (int m = 0; m < kM; ++m) {
        if constexpr (kTransposed)
          lefts.load_transposed(left[m], A::at(k, 16 * m));
        else
          lefts.load(left[m], A::at(16 * m, k));
      }
      add_columns<B>(c, left, rights, k);
    }
  } else {
    FOVEA_UNROLL
    for (int k = 0; k < kTerms; k += 8 * kPiece) {
      Split left[kPiece][kM][4];
      FOVEA_UNROLL
      for (int s = 0; s < kPiece; ++s) {
        FOVEA_UNROLL
        for (int m = 0; m < kM; ++m) {
          if constexpr (kTransposed)
            load_left_transposed_split<Mode>(left[s][m], a, row + 16 * m, k + 8 * s);
          else
            load_left_in_order_split<Mode>(left[s][m], a, row + 16 * m, k + 8 * s);
        }
      }
      add_columns<Mode>(c, left, b, k, column);
    }
  }
}

/// c += A[row.., :kTerms] B[:, column..].
template <class Mode, int kTerms, int kM, int kN, class A, class B>
FOVEA_DEVICE void rows_by_columns(float (&c)[kM][kN][4], const A& a, int row, const B& b,
                                  int column) {
  tile_by_columns<Mode, kTerms, false>(c, a, row, b, column);
}

/// c += A[:kTerms, row..]^T B[:, column..].
template <class Mode, int kTerms, int kM, int kN, class A, class B>
FOVEA_DEVICE void columns_by_columns(float (&c)[kM][kN][4], const A& a, int row, const B& b,
                                     int column) {
  tile_by_columns<Mode, kTerms, true>(c, a, row, b, column);
}

}  // namespace fovea::cuda::FOVEA_WORLD
