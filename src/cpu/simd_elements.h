// f16, bf16 and f64 elements as vectors of f32, and back, by vectors of kLanes.
#pragma once

#include "contract/plain_rows.h"
#include "cpu/flash_args.h"
#include "cpu/simd.h"

#if !defined(__F16C__)
#include <type_traits>

#include "contract/float_types.h"
#endif

namespace fovea::cpu {
namespace {

// bf16 by integer arithmetic: what every instruction set can do.
#if defined(__AVX512F__)
FOVEA_INLINE Vec widen_bf16(const void* p) {
  const __m256i bits = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(
      _mm512_maskz_slli_epi32(kEvery, _mm512_maskz_cvtepu16_epi32(kEvery, bits), 16));
}
/// Rounded to bf16, as f32; NaN stays NaN.
FOVEA_INLINE Vec round_bf16(Vec v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd =
      _mm512_and_si512(_mm512_maskz_srli_epi32(kEvery, bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const Mask is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __m512i kept = _mm512_mask_blend_epi32(is_nan, up, quiet);
  return _mm512_castsi512_ps(
      _mm512_and_si512(kept, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
FOVEA_INLINE void narrow_bf16(void* p, Vec v) {
  const __m512i high = _mm512_maskz_srli_epi32(kEvery, _mm512_castps_si512(round_bf16(v)), 16);
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_maskz_cvtepi32_epi16(kEvery, high));
}
FOVEA_INLINE Vec widen_f16(const void* p) {
  return _mm512_maskz_cvtph_ps(kEvery, _mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
FOVEA_INLINE void narrow_f16(void* p, Vec v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p),
                      _mm512_maskz_cvtps_ph(kEvery, v, _MM_FROUND_TO_NEAREST_INT));
}
/// Lanes that hold two adjoining 16-bit elements each, as the first and the second of them.
template <Element kElement>
FOVEA_INLINE void split_pairs(Vec pairs, Vec& first, Vec& second) {
  const __m512i bits = _mm512_castps_si512(pairs);
  if constexpr (kElement == Element::bf16) {
    first = _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kEvery, bits, 16));
    second = _mm512_castsi512_ps(
        _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  } else {
    const auto low = [](__m512i x) {
      return _mm512_maskz_cvtph_ps(kEvery, _mm512_maskz_cvtepi32_epi16(kEvery, x));
    };
    first = low(bits);
    second = low(_mm512_maskz_srli_epi32(kEvery, bits, 16));
  }
}
#elif defined(__AVX2__) && defined(__F16C__)
FOVEA_INLINE Vec widen_bf16(const void* p) {
  const __m128i bits = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
FOVEA_INLINE Vec round_bf16(Vec v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i kept = _mm256_blendv_epi8(up, quiet, is_nan);
  return _mm256_castsi256_ps(
      _mm256_and_si256(kept, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
FOVEA_INLINE void narrow_bf16(void* p, Vec v) {
  const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(round_bf16(v)), 16);
  const __m256i pairs = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_castsi256_si128(pairs));
}
FOVEA_INLINE Vec widen_f16(const void* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
FOVEA_INLINE void narrow_f16(void* p, Vec v) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
template <Element kElement>
FOVEA_INLINE void split_pairs(Vec pairs, Vec& first, Vec& second) {
  const __m256i bits = _mm256_castps_si256(pairs);
  if constexpr (kElement == Element::bf16) {
    first = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
    second = _mm256_castsi256_ps(
        _mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  } else {
    const __m256i low = _mm256_and_si256(bits, _mm256_set1_epi32(0xffff));
    const __m256i packed = _mm256_packus_epi32(low, _mm256_srli_epi32(bits, 16));
    const __m256i halves = _mm256_permute4x64_epi64(packed, 0xd8);
    first = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    second = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
  }
}
#else
FOVEA_INLINE Vec widen_bf16(const void* p) {
  Bf16 x[kLanes];
  __builtin_memcpy(x, p, sizeof x);
  Vec v = zero();
  for (int n = 0; n < kLanes; ++n) v[n] = to_f32(x[n]);
  return v;
}
FOVEA_INLINE Vec round_bf16(Vec v) {
  for (int n = 0; n < kLanes; ++n) v[n] = to_f32(to_bf16(v[n]));
  return v;
}
FOVEA_INLINE void narrow_bf16(void* p, Vec v) {
  Bf16 x[kLanes];
  for (int n = 0; n < kLanes; ++n) x[n] = to_bf16(v[n]);
  __builtin_memcpy(p, x, sizeof x);
}
FOVEA_INLINE Vec widen_f16(const void* p) {
  F16 x[kLanes];
  __builtin_memcpy(x, p, sizeof x);
  Vec v = zero();
  for (int n = 0; n < kLanes; ++n) v[n] = to_f32(x[n]);
  return v;
}
FOVEA_INLINE void narrow_f16(void* p, Vec v) {
  F16 x[kLanes];
  for (int n = 0; n < kLanes; ++n) x[n] = to_f16(v[n]);
  __builtin_memcpy(p, x, sizeof x);
}
template <Element kElement>
FOVEA_INLINE void split_pairs(Vec pairs, Vec& first, Vec& second) {
  using Half = std::conditional_t<kElement == Element::bf16, Bf16, F16>;
  Half x[2 * kLanes];
  __builtin_memcpy(x, static_cast<const void*>(&pairs), sizeof x);
  for (int n = 0; n < kLanes; ++n) {
    first[n] = to_f32(x[2 * n]);
    second[n] = to_f32(x[2 * n + 1]);
  }
}
#endif

/// kLanes adjoining elements.
template <Element kElement>
FOVEA_INLINE Vec widen(const void* p) {
  if constexpr (kElement == Element::bf16) return widen_bf16(p);
  if constexpr (kElement == Element::f16) return widen_f16(p);
  if constexpr (kElement == Element::f32) return load(static_cast<const float*>(p));
  if constexpr (kElement == Element::f64) {
    float x[kLanes];
    for (int n = 0; n < kLanes; ++n) x[n] = static_cast<float>(static_cast<const double*>(p)[n]);
    return load(x);
  }
}
/// The first `n` of them, and zeros.
template <Element kElement>
FOVEA_INLINE Vec widen(const void* p, int n) {
  if constexpr (kElement == Element::f32) return load(static_cast<const float*>(p), first_lanes(n));
#if defined(__AVX512BW__)
  if constexpr (kElement == Element::f16 || kElement == Element::bf16) {
    const __m256i bits = _mm256_maskz_loadu_epi16(first_lanes(n), p);
    return widen<kElement>(&bits);
  }
#endif
  constexpr int kBytes = kElement == Element::f64 ? 8 : kElement == Element::f32 ? 4 : 2;
  alignas(64) char some[kLanes * kBytes] = {};
  __builtin_memcpy(some, p, static_cast<std::size_t>(n * kBytes));
  return widen<kElement>(some);
}
template <Element kElement>
FOVEA_INLINE void narrow(void* p, Vec v) {
  if constexpr (kElement == Element::bf16) narrow_bf16(p, v);
  if constexpr (kElement == Element::f16) narrow_f16(p, v);
  if constexpr (kElement == Element::f32) store(static_cast<float*>(p), v);
  if constexpr (kElement == Element::f64)
    for (int n = 0; n < kLanes; ++n) static_cast<double*>(p)[n] = static_cast<double>(v[n]);
}

template <int kBytes>
FOVEA_INLINE void copy_strided(const char* from, std::int64_t from_step, char* to,
                               std::int64_t to_step, std::int64_t n) {
  for (std::int64_t x = 0; x < n; ++x)
    __builtin_memcpy(to + x * to_step * kBytes, from + x * from_step * kBytes, kBytes);
}

/// `n` elements, `step` apart, as f32.
template <Element kElement>
void widen_row(const void* from, std::int64_t step, std::int64_t n, float* to) {
  constexpr int kBytes = kElement == Element::f64 ? 8 : kElement == Element::f32 ? 4 : 2;
  const auto* bytes = static_cast<const char*>(from);
  std::int64_t x = 0;
  if (step == 1)
    for (; x + kLanes <= n; x += kLanes) store(to + x, widen<kElement>(bytes + x * kBytes));
  for (; x < n; x += kLanes) {
    const std::int64_t here = n - x < kLanes ? n - x : kLanes;
    alignas(64) char some[kLanes * kBytes] = {};
    copy_strided<kBytes>(bytes + x * step * kBytes, step, some, 1, here);
    store(to + x, widen<kElement>(some), first_lanes(static_cast<int>(here)));
  }
}
/// `n` f32 to elements `step` apart.
template <Element kElement>
void narrow_row(const float* from, std::int64_t n, void* to, std::int64_t step) {
  constexpr int kBytes = kElement == Element::f64 ? 8 : kElement == Element::f32 ? 4 : 2;
  auto* bytes = static_cast<char*>(to);
  std::int64_t x = 0;
  if (step == 1)
    for (; x + kLanes <= n; x += kLanes) narrow<kElement>(bytes + x * kBytes, load(from + x));
  for (; x < n; x += kLanes) {
    const std::int64_t here = n - x < kLanes ? n - x : kLanes;
    alignas(64) char some[kLanes * kBytes];
    narrow<kElement>(some, load(from + x, first_lanes(static_cast<int>(here))));
    copy_strided<kBytes>(some, 1, bytes + x * step * kBytes, step, here);
  }
}

FOVEA_INLINE void widen_row(Element element, const void* from, std::int64_t step, std::int64_t n,
                            float* to) {
  switch (element) {
    case Element::f32:
      return widen_row<Element::f32>(from, step, n, to);
    case Element::f16:
      return widen_row<Element::f16>(from, step, n, to);
    case Element::bf16:
      return widen_row<Element::bf16>(from, step, n, to);
    case Element::f64:
      return widen_row<Element::f64>(from, step, n, to);
  }
}
FOVEA_INLINE void narrow_row(const float* from, std::int64_t n, Element element, void* to,
                             std::int64_t step) {
  switch (element) {
    case Element::f32:
      return narrow_row<Element::f32>(from, n, to, step);
    case Element::f16:
      return narrow_row<Element::f16>(from, n, to, step);
    case Element::bf16:
      return narrow_row<Element::bf16>(from, n, to, step);
    case Element::f64:
      return narrow_row<Element::f64>(from, n, to, step);
  }
}

/// Rounds to a 16-bit dtype in place; nothing for wider ones.
inline void round_row(Element element, float* row, std::int64_t n) {
  if (element != Element::f16 && element != Element::bf16) return;
  for (std::int64_t x = 0; x < n; x += kLanes) {
    const Mask some = first_lanes(static_cast<int>(n - x < kLanes ? n - x : kLanes));
    const Vec v = load(row + x, some);
    Vec rounded = v;
    if (element == Element::bf16) {
      rounded = round_bf16(v);
    } else {
      alignas(64) char bits[kLanes * 2];
      narrow_f16(bits, v);
      rounded = widen_f16(bits);
    }
    store(row + x, rounded, some);
  }
}

/// One element; `data` may be absent.
inline float float_at(const Floats& x, std::int64_t n, float otherwise) {
  if (x.data == nullptr) return otherwise;
  float value;
  widen_row(x.element, static_cast<const char*>(x.data) + n * x.stride * size_of(x.element), 1, 1,
            &value);
  return value;
}

}  // namespace
}  // namespace fovea::cpu
