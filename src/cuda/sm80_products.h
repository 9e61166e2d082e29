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
// 10 bits. InF32: every operand is the sum of three bf16, and of the nine products the six that
// count in f32 are taken. Tensor cores cut sums off; sums in pieces of 16 terms, the small products
// in sums of their own, added up by ordinary additions, keep that near the rounding of f32.
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

/// What a product is. The transposed scores of backward equal those of forward bit for bit.
enum class Product { scores, transposed_scores, other };

/// Terms of a product of f32 that tensor cores sum up in one piece.
inline constexpr int kPiece = 16;

/// Two f32, each the sum of three bf16, exactly: the largest parts, what they leave, and the rest.
struct Parts {
  std::uint32_t word[3];
};
FOVEA_DEVICE Parts parts_of(float low, float high) {
  Parts parts;
  FOVEA_UNROLL
  for (int p = 0; p < 3; ++p) {
    parts.word[p] = pack<Bf16>(low, high);
    if (p == 2) break;
    low -= bits_to_float(parts.word[p] << 16);
    high -= bits_to_float(parts.word[p] & 0xFFFF0000u);
  }
  return parts;
}

/// Operands of a piece as tensor cores take them: A [16 rows, 16 terms] and B [16 terms, 8
/// columns], by words of a fragment, which hold two terms each.
template <class Mode>
struct WideFragment;
template <>
struct WideFragment<InF32> {
  using Word = Parts;
  FOVEA_DEVICE static Word word(float low, float high) { return parts_of(low, high); }
};
/// Two steps of 8 terms.
struct Pair {
  std::uint32_t first, second;
};
template <>
struct WideFragment<InTf32> {
  using Word = Pair;
  FOVEA_DEVICE static Word word(float low, float high) {
    return {round_tf32(low), round_tf32(high)};
  }
};
template <class Mode>
using WideWord = typename WideFragment<Mode>::Word;

/// c += a b, but for the small products, which small takes: they may wait, for fold().
template <Product kProduct>
FOVEA_DEVICE void add_piece(float (&c)[4], float (&small)[4], const Parts (&a)[4],
                            const Parts (&b)[2]) {
  constexpr bool kSwapped = kProduct == Product::transposed_scores;
  float large[4] = {};
  const auto add = [&](float(&to)[4], int p, int q) {
    const std::uint32_t left[4] = {a[0].word[p], a[1].word[p], a[2].word[p], a[3].word[p]};
    const std::uint32_t right[2] = {b[0].word[q], b[1].word[q]};
    multiply<Bf16>(to, left, right);
  };
  const auto add_both = [&](int p, int q) {
    add(small, kSwapped ? p : q, kSwapped ? q : p);
    add(small, kSwapped ? q : p, kSwapped ? p : q);
  };
  add(large, 0, 0);
  add(small, 1, 1);
  add_both(0, 2);
  add_both(0, 1);
  FOVEA_UNROLL
  for (int x = 0; x < 4; ++x) c[x] += large[x];
}
template <Product kProduct>
FOVEA_DEVICE void add_piece(float (&c)[4], float (&)[4], const Pair (&a)[4], const Pair (&b)[2]) {
  float sum[4] = {};
  const std::uint32_t first[4] = {a[0].first, a[1].first, a[2].first, a[3].first};
  const std::uint32_t second[4] = {a[0].second, a[1].second, a[2].second, a[3].second};
  multiply_tf32(sum, first, {b[0].first, b[1].first});
  multiply_tf32(sum, second, {b[0].second, b[1].second});
  FOVEA_UNROLL
  for (int x = 0; x < 4; ++x) c[x] += sum[x];
}
/// Where an operand is infinite the small products are 0 times infinity: then the large ones alone
/// say what the sum is.
template <class Mode>
FOVEA_DEVICE void fold(float (&c)[4], const float (&small)[4]) {
  if constexpr (std::is_same_v<Mode, InF32>) {
    FOVEA_UNROLL
    for (int x = 0; x < 4; ++x) c[x] += is_finite(small[x]) ? small[x] : 0.0f;
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

// Fragments of f32 tiles: of each word a lane holds two terms. Which, is the same for both operands
// of a product: t, t + 4 and t + 8, t + 12 of a piece where both have rows of terms, as matrices of
// 4 columns are read, and otherwise, as in 16 bits, 2t, 2t + 1 and 2t + 8, 2t + 9.

/// A [16 rows, 16 terms] from [rows, terms]; reader_by_rows.
template <class Mode>
FOVEA_DEVICE void load_left_by_rows(WideWord<Mode> (&a)[4], const MatrixReader<float>& reader,
                                    int offset) {
  FOVEA_UNROLL
  for (int half = 0; half < 2; ++half) {
    std::uint32_t r[4];
    reader.load(r, offset + 8 * half);
    FOVEA_UNROLL
    for (int x = 0; x < 2; ++x)
      a[2 * half + x] = WideFragment<Mode>::word(bits_to_float(r[x]), bits_to_float(r[2 + x]));
  }
}
/// B [16 terms, 16 columns] from [columns, terms]: two columns of 8; reader_by_columns.
template <class Mode>
FOVEA_DEVICE void load_right_by_columns(WideWord<Mode> (&b)[2][2],
                                        const MatrixReader<float>& reader, int offset) {
  FOVEA_UNROLL
  for (int half = 0; half < 2; ++half) {
    std::uint32_t r[4];
    reader.load(r, offset + 8 * half);
    FOVEA_UNROLL
    for (int n = 0; n < 2; ++n)
      b[n][half] = WideFragment<Mode>::word(bits_to_float(r[2 * n]), bits_to_float(r[2 * n + 1]));
  }
}
/// A [16 rows, 16 terms] from [rows, terms], or, kTransposed, [terms, rows], for a right operand
/// [terms, columns].
template <class Mode, bool kTransposed, class T>
FOVEA_DEVICE void load_left_in_order(WideWord<Mode> (&a)[4], const T& tile, int row, int term) {
  const int g = lane() / 4, t = lane() % 4;
  FOVEA_UNROLL
  for (int x = 0; x < 4; ++x) {
    const int i = row + g + x % 2 * 8, k = term + 2 * t + x / 2 * 8;
    const int at = kTransposed ? T::at(k, i) : T::at(i, k);
    const int next = kTransposed ? T::at(k + 1, i) : T::at(i, k + 1);
    a[x] = WideFragment<Mode>::word(tile.data[at], tile.data[next]);
  }
}

/// c += pieces of a times rows `term` and on of B [terms, columns], from column `column` on.
template <class Mode, int kPieces, int kM, int kN, class B>
FOVEA_DEVICE void add_columns(float (&c)[kM][kN][4], const WideWord<Mode> (&a)[kPieces][kM][4],
                              const B& b, int term, int column) {
  const int g = lane() / 4, t = lane() % 4;
  FOVEA_UNROLL
  for (int n = 0; n < kN; ++n) {
    float small[kM][4] = {};
    FOVEA_UNROLL
    for (int p = 0; p < kPieces; ++p) {
      WideWord<Mode> right[2];
      FOVEA_UNROLL
      for (int x = 0; x < 2; ++x) {
        const int k = term + kPiece * p + 2 * t + 8 * x, at = column + 8 * n + g;
        right[x] = WideFragment<Mode>::word(b.data[B::at(k, at)], b.data[B::at(k + 1, at)]);
      }
      FOVEA_UNROLL
      for (int m = 0; m < kM; ++m) add_piece<Product::other>(c[m][n], small[m], a[p][m], right);
    }
    FOVEA_UNROLL
    for (int m = 0; m < kM; ++m) fold<Mode>(c[m][n], small[m]);
  }
}
/// Pieces whose small products make one sum, of a product over so many terms.
template <int kTerms>
inline constexpr int kPiecesTogether = kTerms % (2 * kPiece) == 0 ? 2 : 1;
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
    float small[kM][kN][4] = {};
    FOVEA_UNROLL
    for (int k = 0; k < kDepth; k += kPiece) {
      WideWord<Mode> left[kM][4];
      FOVEA_UNROLL
      for (int m = 0; m < kM; ++m) load_left_by_rows<Mode>(left[m], lefts, A::at(16 * m, k));
      FOVEA_UNROLL
      for (int n = 0; n < kN; n += 2) {
        WideWord<Mode> right[2][2];
        load_right_by_columns<Mode>(right, rights, B::at(8 * n, k));
        FOVEA_UNROLL
        for (int m = 0; m < kM; ++m) {
          add_piece<kProduct>(c[m][n], small[m][n], left[m], right[0]);
          add_piece<kProduct>(c[m][n + 1], small[m][n + 1], left[m], right[1]);
        }
      }
    }
    FOVEA_UNROLL
    for (int m = 0; m < kM; ++m) {
      FOVEA_UNROLL
      for (int n = 0; n < kN; ++n) fold<Mode>(c[m][n], small[m][n]);
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

/// c += P B: P [rows, 8 kK keys] as accumulators, B [keys, columns]. prepare(k), for every other k,
/// comes before p[..][k] and p[..][k + 1] are read: what P is made of may be computed while the
/// products before it run.
template <class Mode, int kM, int kK, int kN, class B, class Prepare>
FOVEA_DEVICE void registers_by_columns(float (&c)[kM][kN][4], const float (&p)[kM][kK][4],
                                       const B& b, Prepare&& prepare) {
  static_assert(kN % 2 == 0 && kK % 2 == 0);
  using Element = typename Mode::Element;
  if constexpr (!kIsWide<Mode>) {
    const auto rights = reader_by_rows(b, 0, 0);
    FOVEA_UNROLL
    for (int k = 0; k < kK; k += 2) {
      prepare(k);
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
    constexpr int kPieces = kPiecesTogether<8 * kK>;
    FOVEA_UNROLL
    for (int k = 0; k < kK; k += 2 * kPieces) {
      WideWord<Mode> left[kPieces][kM][4];
      FOVEA_UNROLL
      for (int s = 0; s < kPieces; ++s) {
        prepare(k + 2 * s);
        FOVEA_UNROLL
        for (int m = 0; m < kM; ++m) {
          FOVEA_UNROLL
          for (int x = 0; x < 4; ++x) {
            const float(&pair)[4] = p[m][k + 2 * s + x / 2];
            left[s][m][x] = WideFragment<Mode>::word(pair[x % 2 * 2], pair[x % 2 * 2 + 1]);
          }
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
    constexpr int kPieces = kPiecesTogether<kTerms>;
    FOVEA_UNROLL
    for (int k = 0; k < kTerms; k += kPieces * kPiece) {
      WideWord<Mode> left[kPieces][kM][4];
      FOVEA_UNROLL
      for (int s = 0; s < kPieces; ++s) {
        FOVEA_UNROLL
        for (int m = 0; m < kM; ++m)
          load_left_in_order<Mode, kTransposed>(left[s][m], a, row + 16 * m, k + kPiece * s);
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
