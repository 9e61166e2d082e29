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
//
// An f32 operand lies in shared memory as its parts (PartsTile), made once for all warps of a block
// and read as 16-bit operands are, or as it is (Tile<float>), and is taken apart for each use: what
// one warp alone reads gains nothing by more. Products take either.
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
template <class Mode>
inline constexpr bool kIsF32 = std::is_same_v<Mode, InF32>;

/// A tile [rows, columns] in shared memory.
template <class E, int kRows, int kColumns>
struct Tile {
  using Element = E;
  static constexpr int kInChunk = 16 / static_cast<int>(sizeof(E));
  static constexpr int kStride = kColumns + kInChunk;
  static constexpr int kPart = 0;  ///< see PartsTile
  static constexpr int kElements = kRows * kStride;
  static constexpr int kBytes = kElements * static_cast<int>(sizeof(E));
  Shared<E> data;

  FOVEA_DEVICE explicit Tile(int byte_offset) : data(shared_array<E>(byte_offset, kElements)) {}
  FOVEA_DEVICE static int at(int row, int column) { return row * kStride + column; }
};
/// A tile of f32 as three of bf16, side by side: a row is all largest parts, then what they leave,
/// then the rest. at() is of largest parts; the others of an element follow kPart apart.
template <int kRows, int kColumns>
struct PartsTile : Tile<Bf16, kRows, 3 * kColumns> {
  static constexpr int kPart = kColumns;
  using Tile<Bf16, kRows, 3 * kColumns>::Tile;
};
template <class T>
inline constexpr bool kHasParts = T::kPart > 0;

/// What a product is. The transposed scores of backward equal those of forward bit for bit.
enum class Product { scores, transposed_scores, other };

/// Terms of a step of a product, and of one of f32 that tensor cores sum up in one piece.
inline constexpr int kStepTerms = 16;

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

/// An operand of a step as tensor cores take it: A [16 rows, 16 terms], or B [16 terms, 16
/// columns], whose first 8 columns are words 0 and 1. A word holds two terms, or, in f32, a part of
/// both; in tf32 a term has a word of its own.
template <class Mode>
struct Fragment {
  static constexpr int kWords = kIsF32<Mode> ? 3 : kIsWide<Mode> ? 2 : 1;
  std::uint32_t word[kWords][4];

  FOVEA_DEVICE void set(int x, float low, float high) {
    if constexpr (kIsF32<Mode>) {
      const Parts parts = parts_of(low, high);
      FOVEA_UNROLL
      for (int p = 0; p < 3; ++p) word[p][x] = parts.word[p];
    } else if constexpr (kIsWide<Mode>) {
      word[0][x] = round_tf32(low);
      word[1][x] = round_tf32(high);
    } else {
      word[0][x] = pack<typename Mode::Element>(low, high);
    }
  }
};

/// c[m][n + g] += a[m] b of one step, for kG columns of 8. In f32 the small products go to
/// small[m][s + g], where they may wait, for fold().
template <Product kProduct, int kG, class Mode, int kM, int kN, int kS>
FOVEA_DEVICE void add_step(float (&c)[kM][kN][4], int n, float (&small)[kM][kS][4], int s,
                           const Fragment<Mode> (&a)[kM], const Fragment<Mode> (&b)[kG / 2]) {
  const auto for_each = [&](auto&& use) {
    FOVEA_UNROLL
    for (int m = 0; m < kM; ++m) {
      FOVEA_UNROLL
      for (int g = 0; g < kG; ++g) use(m, g);
    }
  };
  const auto right = [&](int g, int q, std::uint32_t(&to)[2]) {
    to[0] = b[g / 2].word[q][g % 2 * 2];
    to[1] = b[g / 2].word[q][g % 2 * 2 + 1];
  };
  if constexpr (kIsF32<Mode>) {
    // A sum waits for the product before it: the others come in between.
    float large[kM][kG][4] = {};
    const auto add = [&](int p, int q) {
      for_each([&](int m, int g) {
        std::uint32_t columns[2];
        right(g, q, columns);
        multiply<Bf16>(p + q == 0 ? large[m][g] : small[m][s + g], a[m].word[p], columns);
      });
    };
    constexpr bool kSwapped = kProduct == Product::transposed_scores;
    const auto add_both = [&](int p, int q) {
      add(kSwapped ? p : q, kSwapped ? q : p);
      add(kSwapped ? q : p, kSwapped ? p : q);
    };
    add(0, 0);
    add(1, 1);
    add_both(0, 2);
    add_both(0, 1);
    for_each([&](int m, int g) {
      FOVEA_UNROLL
      for (int x = 0; x < 4; ++x) c[m][n + g][x] += large[m][g][x];
    });
  } else if constexpr (kIsWide<Mode>) {
    for_each([&](int m, int g) {
      float sum[4] = {};
      FOVEA_UNROLL
      for (int q = 0; q < 2; ++q) {
        std::uint32_t columns[2];
        right(g, q, columns);
        multiply_tf32(sum, a[m].word[q], columns);
      }
      FOVEA_UNROLL
      for (int x = 0; x < 4; ++x) c[m][n + g][x] += sum[x];
    });
  } else {
    for_each([&](int m, int g) {
      std::uint32_t columns[2];
      right(g, 0, columns);
      multiply<typename Mode::Element>(c[m][n + g], a[m].word[0], columns);
    });
  }
}
/// Columns of 8 that add_step takes together: in f32, enough for sums not to wait for each other.
template <class Mode, int kM, int kN>
inline constexpr int kTogether = 2;

/// Adds the small products of columns n and on. Where an operand is infinite they are 0 times
/// infinity: then the large ones alone say what the sum is.
template <class Mode, int kM, int kN, int kS>
FOVEA_DEVICE void fold(float (&c)[kM][kN][4], int n, const float (&small)[kM][kS][4]) {
  if constexpr (kIsF32<Mode>) {
    FOVEA_UNROLL
    for (int m = 0; m < kM; ++m) {
      FOVEA_UNROLL
      for (int s = 0; s < kS; ++s) {
        FOVEA_UNROLL
        for (int x = 0; x < 4; ++x) {
          const float rest = small[m][s][x];
          if (is_finite(rest)) c[m][n + s][x] += rest;
        }
      }
    }
  }
}

// Readers of fragments, at constant offsets from where they were made. Tiles of 16 bits, parts
// included, are read as matrices, four of 8 x 8 at a time, of which every lane names a row. Tiles
// of f32 are where both operands have rows of terms: a row of a matrix is four numbers, and a lane
// then has terms t, t + 4 and t + 8, t + 12 of both; otherwise element by element, terms 2t, 2t + 1
// and 2t + 8, 2t + 9, as in 16 bits.

template <class T>
using ReaderOf = MatrixReader<typename T::Element>;
template <class T>
inline constexpr bool kInMatrices = sizeof(typename T::Element) == 2;

/// A [16 rows, 16 terms], f32 [16 rows, 8 terms], from [rows, terms]; or B [16 terms, 16 columns]
/// from [terms, columns], transposed.
template <class T>
FOVEA_DEVICE ReaderOf<T> reader_by_rows(const T& tile, int row, int column) {
  return {tile.data, T::at(row + lane() % 16, column + lane() / 16 * T::kInChunk)};
}
/// B [16 terms, 16 columns], f32 [8 terms, 16 columns], from [columns, terms]; or A [16 rows, 16
/// terms] from [terms, rows], transposed.
template <class T>
FOVEA_DEVICE ReaderOf<T> reader_by_columns(const T& tile, int row, int column) {
  return {tile.data,
          T::at(row + lane() % 8 + lane() / 16 * 8, column + lane() / 8 % 2 * T::kInChunk)};
}
template <class T, class Mode>
FOVEA_DEVICE void load_words(Fragment<Mode>& to, const ReaderOf<T>& reader, int offset,
                             bool transposed) {
  FOVEA_UNROLL
  for (int p = 0; p < Fragment<Mode>::kWords; ++p) {
    if (transposed)
      reader.load_transposed(to.word[p], offset + p * T::kPart);
    else
      reader.load(to.word[p], offset + p * T::kPart);
  }
}

/// A from [rows, terms], with reader_by_rows; for a B of load_right_by_columns.
template <class T, class Mode>
FOVEA_DEVICE void load_left_by_rows(Fragment<Mode>& a, const ReaderOf<T>& reader, int offset) {
  if constexpr (kInMatrices<T>) {
    load_words<T>(a, reader, offset, false);
  } else {
    FOVEA_UNROLL
    for (int half = 0; half < 2; ++half) {
      std::uint32_t r[4];
      reader.load(r, offset + 8 * half);
      FOVEA_UNROLL
      for (int x = 0; x < 2; ++x) a.set(2 * half + x, bits_to_float(r[x]), bits_to_float(r[2 + x]));
    }
  }
}
/// B from [columns, terms], with reader_by_columns.
template <class T, class Mode>
FOVEA_DEVICE void load_right_by_columns(Fragment<Mode>& b, const ReaderOf<T>& reader, int offset) {
  if constexpr (kInMatrices<T>) {
    load_words<T>(b, reader, offset, false);
  } else {
    FOVEA_UNROLL
    for (int half = 0; half < 2; ++half) {
      std::uint32_t r[4];
      reader.load(r, offset + 8 * half);
      FOVEA_UNROLL
      for (int n = 0; n < 2; ++n)
        b.set(2 * n + half, bits_to_float(r[2 * n]), bits_to_float(r[2 * n + 1]));
    }
  }
}

/// The lane's element of a tile of f32.
struct ElementReader {
  Shared<float> from;
  int index;
  FOVEA_DEVICE float load(int offset) const { return from[index + offset]; }
};
/// A from [rows, terms], or, kTransposed, from [terms, rows]; for a B of right_reader.
template <bool kTransposed, class T>
FOVEA_DEVICE auto left_reader(const T& tile, int row, int term) {
  const int i = kTransposed ? term : row, j = kTransposed ? row : term;
  if constexpr (kInMatrices<T>) {
    return kTransposed ? reader_by_columns(tile, i, j) : reader_by_rows(tile, i, j);
  } else {
    const int g = lane() / 4, t = lane() % 4 * 2;
    return ElementReader{tile.data, T::at(i + (kTransposed ? t : g), j + (kTransposed ? g : t))};
  }
}
template <bool kTransposed, class T, class Mode, class Reader>
FOVEA_DEVICE void load_left(Fragment<Mode>& a, const Reader& reader, int row, int term) {
  const auto at = [&](int i, int k) {
    return kTransposed ? T::at(term + k, row + i) : T::at(row + i, term + k);
  };
  if constexpr (kInMatrices<T>) {
    load_words<T>(a, reader, at(0, 0), kTransposed);
  } else {
    FOVEA_UNROLL
    for (int x = 0; x < 4; ++x) {
      const int i = x % 2 * 8, k = x / 2 * 8;
      a.set(x, reader.load(at(i, k)), reader.load(at(i, k + 1)));
    }
  }
}
/// B from [terms, columns].
template <class T>
FOVEA_DEVICE auto right_reader(const T& tile, int term, int column) {
  if constexpr (kInMatrices<T>)
    return reader_by_rows(tile, term, column);
  else
    return ElementReader{tile.data, T::at(term + lane() % 4 * 2, column + lane() / 4)};
}
template <class T, class Mode, class Reader>
FOVEA_DEVICE void load_right(Fragment<Mode>& b, const Reader& reader, int term, int column) {
  if constexpr (kInMatrices<T>) {
    load_words<T>(b, reader, T::at(term, column), true);
  } else {
    FOVEA_UNROLL
    for (int x = 0; x < 4; ++x) {
      const int k = term + x % 2 * 8, n = column + x / 2 * 8;
      b.set(x, reader.load(T::at(k, n)), reader.load(T::at(k + 1, n)));
    }
  }
}

/// Steps whose small products make one sum, of a product over so many terms.
template <class Mode, int kTerms>
inline constexpr int kStepsTogether = kIsF32<Mode>&& kTerms % (2 * kStepTerms) == 0 ? 2 : 1;

/// c += steps of a times rows `term` and on of B [terms, columns]; rights: right_reader.
template <class B, int kSteps, class Mode, int kM, int kN, class Reader>
FOVEA_DEVICE void add_columns(float (&c)[kM][kN][4], const Fragment<Mode> (&a)[kSteps][kM],
                              const Reader& rights, int term) {
  constexpr int kG = kTogether<Mode, kM, kN>;
  FOVEA_UNROLL
  for (int n = 0; n < kN; n += kG) {
    float small[kM][kG][4] = {};
    FOVEA_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      Fragment<Mode> right[kG / 2];
      FOVEA_UNROLL
      for (int g = 0; g < kG / 2; ++g)
        load_right<B>(right[g], rights, term + kStepTerms * s, 8 * n + 16 * g);
      add_step<Product::other, kG>(c, n, small, 0, a[s], right);
    }
    fold<Mode>(c, n, small);
  }
}
/// c += a step of A times terms `term` and on of B [columns, terms]; rights: reader_by_columns.
template <Product kProduct, class B, class Mode, int kM, int kN>
FOVEA_DEVICE void add_rows(float (&c)[kM][kN][4], float (&small)[kM][kN][4],
                           const Fragment<Mode> (&a)[kM], const ReaderOf<B>& rights, int term) {
  constexpr int kG = kTogether<Mode, kM, kN>;
  FOVEA_UNROLL
  for (int n = 0; n < kN; n += kG) {
    Fragment<Mode> right[kG / 2];
    FOVEA_UNROLL
    for (int g = 0; g < kG / 2; ++g)
      load_right_by_columns<B>(right[g], rights, B::at(8 * n + 16 * g, term));
    add_step<kProduct, kG>(c, n, small, n, a, right);
  }
}

// The products.

/// c += A[row.., :kDepth] B[column.., :kDepth]^T.
template <class Mode, int kDepth, Product kProduct = Product::other, int kM, int kN, class A,
          class B>
FOVEA_DEVICE void rows_by_rows(float (&c)[kM][kN][4], const A& a, int row, const B& b,
                               int column = 0) {
  static_assert(kN % 2 == 0 && kInMatrices<A> == kInMatrices<B>);
  const auto lefts = reader_by_rows(a, row, 0);
  const auto rights = reader_by_columns(b, column, 0);
  float small[kM][kN][4] = {};
  FOVEA_UNROLL
  for (int k = 0; k < kDepth; k += kStepTerms) {
    Fragment<Mode> left[kM];
    FOVEA_UNROLL
    for (int m = 0; m < kM; ++m) load_left_by_rows<A>(left[m], lefts, A::at(16 * m, k));
    add_rows<kProduct, B>(c, small, left, rights, k);
  }
  fold<Mode>(c, 0, small);
}

/// Rows [row, row + 16 kM) of A [rows, terms] as left operands, to be used many times.
template <class Mode, int kSteps, int kM, class A>
FOVEA_DEVICE void load_fragments(Fragment<Mode> (&to)[kSteps][kM], const A& a, int row) {
  const auto lefts = left_reader<false>(a, row, 0);
  FOVEA_UNROLL
  for (int k = 0; k < kSteps; ++k) {
    FOVEA_UNROLL
    for (int m = 0; m < kM; ++m) load_left<false, A>(to[k][m], lefts, 16 * m, kStepTerms * k);
  }
}
/// c += A B[:, :16 kSteps]^T; B of 16 bits or in parts.
template <Product kProduct, class Mode, int kSteps, int kM, int kN, class B>
FOVEA_DEVICE void fragments_by_rows(float (&c)[kM][kN][4], const Fragment<Mode> (&a)[kSteps][kM],
                                    const B& b) {
  static_assert(kN % 2 == 0 && kInMatrices<B>);
  const auto rights = reader_by_columns(b, 0, 0);
  float small[kM][kN][4] = {};
  FOVEA_UNROLL
  for (int k = 0; k < kSteps; ++k) add_rows<kProduct, B>(c, small, a[k], rights, kStepTerms * k);
  fold<Mode>(c, 0, small);
}

/// c += P B: P [rows, 8 kK keys] as accumulators, B [keys, columns]. prepare(k), for every other k,
/// comes before p[..][k] and p[..][k + 1] are read: what P is made of may be computed while the
/// products before it run.
template <class Mode, int kM, int kK, int kN, class B, class Prepare>
FOVEA_DEVICE void registers_by_columns(float (&c)[kM][kN][4], const float (&p)[kM][kK][4],
                                       const B& b, Prepare&& prepare) {
  static_assert(kN % 2 == 0 && kK % 2 == 0);
  constexpr int kSteps = kStepsTogether<Mode, 8 * kK>;
  const auto rights = right_reader(b, 0, 0);
  FOVEA_UNROLL
  for (int k = 0; k < kK; k += 2 * kSteps) {
    Fragment<Mode> left[kSteps][kM];
    FOVEA_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      prepare(k + 2 * s);
      FOVEA_UNROLL
      for (int m = 0; m < kM; ++m) {
        FOVEA_UNROLL
        for (int x = 0; x < 4; ++x) {
          const float(&pair)[4] = p[m][k + 2 * s + x / 2];
          left[s][m].set(x, pair[x % 2 * 2], pair[x % 2 * 2 + 1]);
        }
      }
    }
    add_columns<B>(c, left, rights, 8 * k);
  }
}

/// c += A B[:, column..]: A [rows, terms] from row `row` on, or, kTransposed, A^T of [terms, rows].
template <class Mode, int kTerms, bool kTransposed, int kM, int kN, class A, class B>
FOVEA_DEVICE void tile_by_columns(float (&c)[kM][kN][4], const A& a, int row, const B& b,
                                  int column) {
  static_assert(kN % 2 == 0 && kTerms % kStepTerms == 0);
  constexpr int kSteps = kStepsTogether<Mode, kTerms>;
  const auto lefts = left_reader<kTransposed>(a, row, 0);
  const auto rights = right_reader(b, 0, column);
  FOVEA_UNROLL
  for (int k = 0; k < kTerms; k += kSteps * kStepTerms) {
    Fragment<Mode> left[kSteps][kM];
    FOVEA_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      FOVEA_UNROLL
      for (int m = 0; m < kM; ++m)
        load_left<kTransposed, A>(left[s][m], lefts, 16 * m, k + kStepTerms * s);
    }
    add_columns<B>(c, left, rights, k);
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
