// Register tiles: C (6 x kTileVecs vectors) from A, read element by element, and B, read by
// vectors.
//
// The multiplier has 2 ports and 4 cycles of latency, so 8 independent sums keep it busy; 6 x 4
// (AVX- 512) or 6 x 2 (AVX2) sums leave registers for the operands and need 10 loads for 24
// products.
//
// Long sums are cut: a sum of n terms taken one after the other errs like n, cut into c pieces like
// n / sqrt(c).
#pragma once

#include "cpu/simd.h"

namespace fovea::cpu {
namespace {

constexpr int kTileRows = 6;
constexpr int kTileCols = kTileVecs * kLanes;

// A and B consist of words: a float each, or, with AVX512-BF16, two neighbours in bf16 along the
// depth of the sum. Depths and steps count words; what is missing in the last step is 0.
#if defined(__AVX512BF16__)
constexpr int kPack = 2;
#else
constexpr int kPack = 1;
#endif
/// Elements that sums take at a time: a word, or, with AMX, a row of a tile register.
#if defined(__AMX_BF16__)
constexpr int kDepth = 32;
#else
constexpr int kDepth = kPack;
#endif
/// Words of so many elements, whole steps of a sum.
FOVEA_INLINE std::int64_t words(std::int64_t elements) {
  return (elements + kDepth - 1) / kDepth * (kDepth / kPack);
}

/// sums + the product, or the two products, of words.
FOVEA_INLINE Vec multiply_add(Vec a, Vec b, Vec sums) {
#if defined(__AVX512BF16__)
  return _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
#else
  return fma(a, b, sums);
#endif
}
FOVEA_INLINE Vec multiply(Vec a, Vec b) {
  if constexpr (kPack == 1) return a * b;
  return multiply_add(a, b, zero());
}

/// Products of queries and keys are summed in pieces of this length, which large logits need: with
/// 64 the lse of one case in 300 missed the numerics rule, with 16 none of 5,000. It costs an
/// addition for every 16 products.
constexpr std::int64_t kPieceOfDot = 16;

/// What becomes of C once its products are summed.
enum class Into {
  kStore,        ///< C = AB
  kStorePieces,  ///< C = AB, of pieces that are summed in C
  kAdd,          ///< C += AB
  kRescaleAdd,   ///< row r of C = rescale[r] * C + AB
  kFactorStore,  ///< C = factor * AB
  kFactorAdd,    ///< C += factor * AB
};

struct TileArgs {
  const float* a;  ///< A(r, k) at a[r * a_row + k * a_step]
  std::int64_t a_row, a_step;
  const float* b;  ///< row k at b + k * b_row
  std::int64_t b_row;
  float* c;  ///< row r at c + r * c_row
  std::int64_t c_row;
  std::int64_t depth;  ///< products in each sum, at least 1
  const float* rescale = nullptr;
  float factor = 1;
};

/// sums = AB over `depth` products from a and b on.
template <int kRows, int kVecs>
FOVEA_INLINE void multiply(const TileArgs& args, const float* a, const float* b, std::int64_t depth,
                           Vec (&sums)[kRows][kVecs]) {
  const std::int64_t a_row = args.a_row, a_step = args.a_step, b_row = args.b_row;
  Vec row[kVecs];
#pragma GCC unroll 8
  for (int v = 0; v < kVecs; ++v) row[v] = load(b + v * kLanes);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const Vec element = splat(a[r * a_row]);
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) sums[r][v] = multiply(element, row[v]);
  }
  for (std::int64_t k = depth - 1; k > 0; --k) {
    a += a_step;
    b += b_row;
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) row[v] = load(b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec element = splat(a[r * a_row]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) sums[r][v] = multiply_add(element, row[v], sums[r][v]);
    }
  }
}

template <int kRows, int kVecs, Into kInto>
FOVEA_INLINE void put(const TileArgs& args, const Vec (&sums)[kRows][kVecs]) {
  float* c = args.c;
  [[maybe_unused]] Vec scales[kRows];
  [[maybe_unused]] const Vec factor = splat(args.factor);
  if constexpr (kInto == Into::kRescaleAdd) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) scales[r] = splat(args.rescale[r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r, c += args.c_row) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      float* to = c + v * kLanes;
      if constexpr (kInto == Into::kStore) store(to, sums[r][v]);
      if constexpr (kInto == Into::kAdd) store(to, sums[r][v] + load(to));
      if constexpr (kInto == Into::kRescaleAdd) store(to, fma(load(to), scales[r], sums[r][v]));
      if constexpr (kInto == Into::kFactorStore) store(to, sums[r][v] * factor);
      if constexpr (kInto == Into::kFactorAdd) store(to, fma(sums[r][v], factor, load(to)));
    }
  }
}

template <int kRows, int kVecs, Into kInto>
__attribute__((noinline)) static void tile(const TileArgs& args) {
  Vec sums[kRows][kVecs];
  if constexpr (kInto != Into::kStorePieces) {
    multiply(args, args.a, args.b, args.depth, sums);
    put<kRows, kVecs, kInto>(args, sums);
  } else {
    for (std::int64_t done = 0; done < args.depth; done += kPieceOfDot) {
      const std::int64_t left = args.depth - done;
      multiply(args, args.a + done * args.a_step, args.b + done * args.b_row,
               left < kPieceOfDot ? left : kPieceOfDot, sums);
      if (done == 0)
        put<kRows, kVecs, Into::kStore>(args, sums);
      else
        put<kRows, kVecs, Into::kAdd>(args, sums);
    }
  }
}

using TileFunction = void (*)(const TileArgs&);

/// The tile of `rows` x `vecs` vectors.
template <Into kInto>
FOVEA_INLINE TileFunction tile_function(int rows, int vecs) {
#define FOVEA_TILE_ROWS(v)                                                                         \
  {                                                                                                \
    tile<1, v, kInto>, tile<2, v, kInto>, tile<3, v, kInto>, tile<4, v, kInto>, tile<5, v, kInto>, \
        tile<6, v, kInto>                                                                          \
  }
  static constexpr TileFunction kTable[kTileVecs][kTileRows] = {
    FOVEA_TILE_ROWS(1),
    FOVEA_TILE_ROWS(2),
#if defined(__AVX512F__)
    FOVEA_TILE_ROWS(3),
    FOVEA_TILE_ROWS(4)
#endif
  };
#undef FOVEA_TILE_ROWS
  return kTable[vecs - 1][rows - 1];
}

/// C = AB with each sum cut into pieces, where operands are not coarser than that.
FOVEA_INLINE void dot_tile(int rows, int vecs, const TileArgs& args) {
  constexpr Into kInto = kPack > 1 ? Into::kStore : Into::kStorePieces;
  tile_function<kInto>(rows, vecs)(args);
}

/// Half n % kPack of words, as f32.
FOVEA_INLINE Vec half_of(Vec x, std::int64_t n) {
#if defined(__AVX512BF16__)
  const __m512i bits = _mm512_castps_si512(x);
  return _mm512_castsi512_ps(
      n % 2 == 0 ? _mm512_maskz_slli_epi32(kEvery, bits, 16)
                 : _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
#else
  static_cast<void>(n);
  return x;
#endif
}

/// C += factor AB over the products that visible(r, k) shows; here depth counts elements. Where B
/// holds NaN or infinity, a weight of 0 would not silence it.
template <class Visible>
void add_visible(const TileArgs& t, std::int64_t rows, int vecs, Visible visible) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t k = 0; k < t.depth; ++k) {
      if (!visible(r, k)) continue;
      const Vec weight = half_of(splat(t.a[r * t.a_row + k / kPack * t.a_step]), k);
      const Vec element = weight * splat(t.factor);
      for (int v = 0; v < vecs; ++v) {
        float* to = t.c + r * t.c_row + v * kLanes;
        const Vec row = half_of(load(t.b + k / kPack * t.b_row + v * kLanes), k);
        store(to, fma(element, row, load(to)));
      }
    }
}

/// Dot products of kRows rows of X with the same rows of Y, to the last bit the sums that dot_tile
/// makes: where a row's weight lies on one key, out = v, and delta = dO.out cancels dP = dO.v
/// exactly.
template <int kRows>
FOVEA_INLINE void dots_as_tile(const float* const* x, std::int64_t x_step, const float* const* y,
                               std::int64_t y_step, std::int64_t depth, float* dots) {
  for (std::int64_t done = 0; done < depth; done += kPieceOfDot) {
    const std::int64_t end = done + kPieceOfDot < depth ? done + kPieceOfDot : depth;
    float sums[kRows];
    for (int r = 0; r < kRows; ++r) sums[r] = x[r][done * x_step] * y[r][done * y_step];
    for (std::int64_t k = done + 1; k < end; ++k)
      for (int r = 0; r < kRows; ++r) sums[r] = fma(x[r][k * x_step], y[r][k * y_step], sums[r]);
    for (int r = 0; r < kRows; ++r) dots[r] = done == 0 ? sums[r] : sums[r] + dots[r];
  }
}

}  // namespace
}  // namespace fovea::cpu
