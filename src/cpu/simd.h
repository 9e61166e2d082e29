// The vector layer of the CPU kernels: one type, Vec, of kLanes floats, and the few operations that
// the kernels need, for AVX-512, AVX2 with FMA, and any other machine.
//
// Only files that are compiled for one instruction set include this. All of it has internal
// linkage, so that no function built for one machine can be linked into code that runs on another.
#pragma once

#include <cstdint>

#if defined(__SSE__)
#include <immintrin.h>
#endif

#define FOVEA_INLINE inline __attribute__((always_inline))

namespace fovea::cpu {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr float kFloatMax = __FLT_MAX__;
constexpr double kLog2e = 1.44269504088896340736;
constexpr double kLn2 = 0.69314718055994530942;

#if defined(__AVX512F__)

using Vec = __m512;
using Mask = __mmask16;
constexpr int kLanes = 16;
/// Vectors across a register tile: 6 x 4 sums, 4 operands and a broadcast fit 32 registers.
constexpr int kTileVecs = 4;
/// exp2 is right for every argument, above 128 too.
constexpr bool kExp2TakesAll = true;

// GCC 12 warns of the undefined source of the unmasked forms; those with zeroing compile to the
// same.
constexpr Mask kEvery = 0xffff;

FOVEA_INLINE Vec zero() { return _mm512_setzero_ps(); }
FOVEA_INLINE Vec splat(float x) { return _mm512_set1_ps(x); }
FOVEA_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
FOVEA_INLINE void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
FOVEA_INLINE Mask first_lanes(int n) {
  return n >= kLanes ? kEvery : static_cast<Mask>((1u << n) - 1u);
}
FOVEA_INLINE Vec load(const float* p, Mask m) { return _mm512_maskz_loadu_ps(m, p); }
FOVEA_INLINE void store(float* p, Vec v, Mask m) { _mm512_mask_storeu_ps(p, m, v); }
FOVEA_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
FOVEA_INLINE Vec select(Mask m, Vec a, Vec b) { return _mm512_mask_blend_ps(m, b, a); }
FOVEA_INLINE Mask less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
FOVEA_INLINE Mask equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
FOVEA_INLINE bool any(Mask m) { return m != 0; }
FOVEA_INLINE Mask both(Mask a, Mask b) { return static_cast<Mask>(a & b); }
/// The lanes of m as bits, and back.
FOVEA_INLINE std::uint64_t bits_of(Mask m) { return m; }
FOVEA_INLINE Mask lanes_of(std::uint64_t bits) { return static_cast<Mask>(bits); }
/// The larger, or b where either is NaN; min likewise.
FOVEA_INLINE Vec max(Vec a, Vec b) { return _mm512_maskz_max_ps(kEvery, a, b); }
FOVEA_INLINE Vec min(Vec a, Vec b) { return _mm512_maskz_min_ps(kEvery, a, b); }
FOVEA_INLINE float sum(Vec v) {
  const Vec halves =
      v + __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  const Vec quarters = halves + __builtin_shufflevector(halves, halves, 4, 5, 6, 7, 0, 1, 2, 3, 4,
                                                        5, 6, 7, 0, 1, 2, 3);
  return (quarters[0] + quarters[2]) + (quarters[1] + quarters[3]);
}

/// 2^x within 1.5e-7, by a minimax polynomial on [0, 1) that is exact at 0: a row whose weight lies
/// on one key then has the weight 1.
FOVEA_INLINE Vec exp2(Vec x) {
  const Vec f = _mm512_maskz_reduce_ps(kEvery, x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  Vec p = splat(0x1.e974fcp-10f);
  p = fma(p, f, splat(0x1.277854p-7f));
  p = fma(p, f, splat(0x1.c91ce6p-5f));
  p = fma(p, f, splat(0x1.ebdb58p-3f));
  p = fma(p, f, splat(0x1.62e4bap-1f));
  p = fma(p, f, splat(1));
  return _mm512_maskz_scalef_ps(kEvery, p, x);
}

/// Lane c of r[i] <-> lane i of r[c].
FOVEA_INLINE void transpose(Vec (&r)[kLanes]) {
  Vec t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28,
                                   13, 29);
    t[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27,
                                       14, 30, 15, 31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 4) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const Vec a = t[i + h], b = t[i + 2 + h];
      r[i + 2 * h] =
          __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
      r[i + 2 * h + 1] =
          __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
  }
  // Four rows' quarters stand in the lanes of r; bring the quarters of a column together.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 2
    for (int h = 0; h < 16; h += 8) {
      const Vec a = r[i + h], b = r[i + 4 + h];
      t[i + h] =
          __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
      t[i + 4 + h] =
          __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const Vec a = t[i], b = t[i + 8];
    r[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    r[i + 8] =
        __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  }
}

/// Lanes of a and b in turn.
FOVEA_INLINE void join_pairs(Vec& a, Vec& b) {
  const Vec low =
      __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  b = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  a = low;
}

#else

#if defined(__AVX2__) && defined(__FMA__)

using Vec = __m256;
using Mask = __m256;
constexpr int kLanes = 8;
/// Vectors across a register tile: 6 x 2 sums, 2 operands and a broadcast fit 16 registers.
constexpr int kTileVecs = 2;

FOVEA_INLINE Vec zero() { return _mm256_setzero_ps(); }
FOVEA_INLINE Vec splat(float x) { return _mm256_set1_ps(x); }
FOVEA_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
FOVEA_INLINE void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
FOVEA_INLINE Mask first_lanes(int n) {
  return _mm256_castsi256_ps(
      _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
}
FOVEA_INLINE Vec load(const float* p, Mask m) {
  return _mm256_maskload_ps(p, _mm256_castps_si256(m));
}
FOVEA_INLINE void store(float* p, Vec v, Mask m) {
  _mm256_maskstore_ps(p, _mm256_castps_si256(m), v);
}
FOVEA_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
FOVEA_INLINE Vec select(Mask m, Vec a, Vec b) { return _mm256_blendv_ps(b, a, m); }
FOVEA_INLINE Mask less(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
FOVEA_INLINE Mask equal(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
FOVEA_INLINE bool any(Mask m) { return _mm256_movemask_ps(m) != 0; }
FOVEA_INLINE Mask both(Mask a, Mask b) { return _mm256_and_ps(a, b); }
FOVEA_INLINE std::uint64_t bits_of(Mask m) {
  return static_cast<std::uint64_t>(_mm256_movemask_ps(m));
}
FOVEA_INLINE Mask lanes_of(std::uint64_t bits) {
  const __m256i one = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, one), one));
}
FOVEA_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
FOVEA_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
FOVEA_INLINE float sum(Vec v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}
FOVEA_INLINE void transpose(Vec (&r)[kLanes]) {
  Vec t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      r[i + 2 * h] = _mm256_shuffle_ps(t[i + h], t[i + 2 + h], 0x44);
      r[i + 2 * h + 1] = _mm256_shuffle_ps(t[i + h], t[i + 2 + h], 0xee);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Vec a = r[i], b = r[i + 4];
    r[i] = _mm256_permute2f128_ps(a, b, 0x20);
    r[i + 4] = _mm256_permute2f128_ps(a, b, 0x31);
  }
}
FOVEA_INLINE void join_pairs(Vec& a, Vec& b) {
  const Vec low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);
  a = _mm256_permute2f128_ps(low, high, 0x20);
  b = _mm256_permute2f128_ps(low, high, 0x31);
}
/// 2^n for the integer n that stands 127 too high in the low bits of t.
FOVEA_INLINE Vec power_of_two(Vec t) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23));
}

#else

typedef float Vec __attribute__((vector_size(16)));
typedef std::int32_t Mask __attribute__((vector_size(16)));
constexpr int kLanes = 4;
constexpr int kTileVecs = 2;

FOVEA_INLINE Vec zero() { return Vec{0, 0, 0, 0}; }
FOVEA_INLINE Vec splat(float x) { return Vec{x, x, x, x}; }
FOVEA_INLINE Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
FOVEA_INLINE void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }
FOVEA_INLINE Mask first_lanes(int n) { return Mask{0, 1, 2, 3} < Mask{n, n, n, n}; }
FOVEA_INLINE Vec load(const float* p, Mask m) {
  Vec v = zero();
  for (int i = 0; i < kLanes; ++i) {
    if (m[i] == 0) continue;
    float x;
    __builtin_memcpy(&x, p + i, sizeof x);
    v[i] = x;
  }
  return v;
}
FOVEA_INLINE void store(float* p, Vec v, Mask m) {
  for (int i = 0; i < kLanes; ++i)
    if (m[i] != 0) p[i] = v[i];
}
FOVEA_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
FOVEA_INLINE Vec select(Mask m, Vec a, Vec b) { return m ? a : b; }
FOVEA_INLINE Mask less(Vec a, Vec b) { return a < b; }
FOVEA_INLINE Mask equal(Vec a, Vec b) { return a == b; }
FOVEA_INLINE bool any(Mask m) { return (m[0] | m[1] | m[2] | m[3]) != 0; }
FOVEA_INLINE Mask both(Mask a, Mask b) { return a & b; }
FOVEA_INLINE std::uint64_t bits_of(Mask m) {
  return static_cast<std::uint64_t>((m[0] & 1) | (m[1] & 2) | (m[2] & 4) | (m[3] & 8));
}
FOVEA_INLINE Mask lanes_of(std::uint64_t bits) {
  const Mask one{1, 2, 4, 8}, all = Mask{} + static_cast<std::int32_t>(bits & 15);
  return (all & one) == one;
}
FOVEA_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
FOVEA_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }
FOVEA_INLINE float sum(Vec v) { return (v[0] + v[2]) + (v[1] + v[3]); }
FOVEA_INLINE void transpose(Vec (&r)[kLanes]) {
  const Vec a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
  const Vec b = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
  const Vec c = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
  const Vec d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
  r[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
  r[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
  r[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
  r[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}
FOVEA_INLINE void join_pairs(Vec& a, Vec& b) {
  const Vec low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  b = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  a = low;
}
FOVEA_INLINE Vec power_of_two(Vec t) {
  return reinterpret_cast<Vec>(reinterpret_cast<Mask>(t) << 23);
}

#endif

/// exp2 is right up to 127, and 0 below -126.5.
constexpr bool kExp2TakesAll = false;

/// 2^x within 1.7e-7, by a minimax polynomial on [-1/2, 1/2] that is exact at 0.
FOVEA_INLINE Vec exp2(Vec x) {
  // Adding 3 * 2^22 leaves the nearest integer in the low bits, here 127 higher: an exponent.
  const Vec magic = splat(12582912.0f + 127.0f);
  const Vec bounded = max(splat(-127.0f), x);
  const Vec t = bounded + magic;
  const Vec f = bounded - (t - magic);
  Vec p = splat(0x1.5bba14p-10f);
  p = fma(p, f, splat(0x1.3cea88p-7f));
  p = fma(p, f, splat(0x1.c6b752p-5f));
  p = fma(p, f, splat(0x1.ebf9bcp-3f));
  p = fma(p, f, splat(0x1.62e42ap-1f));
  p = fma(p, f, splat(1));
  return p * power_of_two(t);
}

#endif

/// to[c][r] = from[r][c] for a square block of kLanes.
FOVEA_INLINE void transpose_block(const float* from, std::int64_t from_row, float* to,
                                  std::int64_t to_row) {
  Vec rows[kLanes];
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; ++r) rows[r] = load(from + r * from_row);
  transpose(rows);
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; ++r) store(to + r * to_row, rows[r]);
}

/// What a lane of the vectors' fma gives.
FOVEA_INLINE float fma(float a, float b, float c) {
#if defined(__FMA__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/// The largest lane; where some are NaN, that or NaN.
FOVEA_INLINE float largest_lane(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int n = 0; n < half; ++n)
      lanes[n] = lanes[n] > lanes[n + half] ? lanes[n] : lanes[n + half];
  return lanes[0];
}

FOVEA_INLINE Vec absolute(Vec v) { return max(v, zero() - v); }

/// tanh x within 3 units in the last place: an odd polynomial near 0, 1 - 2 / (e^2x + 1) elsewhere.
FOVEA_INLINE Vec tanh(Vec x) {
  const Vec size = absolute(x), w = x * x;
  Vec p = splat(-0x1.745358p-8f);
  p = fma(p, w, splat(0x1.51d09cp-6f));
  p = fma(p, w, splat(-0x1.b82fb4p-5f));
  p = fma(p, w, splat(0x1.1106cap-3f));
  p = fma(p, w, splat(-0x1.555532p-2f));
  const Vec near = fma(p * w, x, x);
  const Vec bounded = min(splat(10), size);
  const Vec e = exp2(bounded * splat(static_cast<float>(2 * kLog2e)));
  const Vec far = splat(1) - splat(2) / (e + splat(1));
  const Vec far_signed = select(less(x, zero()), zero() - far, far);
  const Vec result = select(less(size, splat(0.625f)), near, far_signed);
  return select(equal(x, x), result, x);
}

/// Subnormal weights would cost a microcode assist each and change no result that matters: they are
/// flushed to zero while a kernel runs, and the caller's mode is put back.
class FlushSubnormals {
 public:
#if defined(__SSE__)
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040u); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }
#else
  FlushSubnormals() = default;
#endif
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

#if defined(__SSE__)
 private:
  unsigned saved_;
#endif
};

}  // namespace
}  // namespace fovea::cpu
