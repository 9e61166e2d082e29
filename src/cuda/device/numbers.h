// Arithmetic that a GPU has instructions for, and elements of any float type.
#pragma once

#include "contract/float_types.h"
#include "contract/plain_call.h"
#include "cuda/device/platform.h"

#if !defined(__CUDACC__)
#include <bit>
#include <cmath>
#endif

namespace fovea::cuda::FOVEA_WORLD {

#if defined(__CUDACC__)

FOVEA_DEVICE float bits_to_float(std::uint32_t x) { return __uint_as_float(x); }
FOVEA_DEVICE std::uint32_t float_to_bits(float x) { return __float_as_uint(x); }

/// 2^x to about 2 units in the last place; subnormal results are 0.
FOVEA_DEVICE float exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
FOVEA_DEVICE float log2(float x) { return ::log2f(x); }
FOVEA_DEVICE float tanh(float x) { return ::tanhf(x); }
FOVEA_DEVICE float rsqrt(float x) { return ::rsqrtf(x); }
FOVEA_DEVICE float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
/// The larger; the other one where one is NaN.
FOVEA_DEVICE float max(float a, float b) { return ::fmaxf(a, b); }
/// a b, rounded up.
FOVEA_DEVICE float multiply_up(float a, float b) { return __fmul_ru(a, b); }

/// Two floats rounded to nearest even, in one word.
template <class T>
FOVEA_DEVICE std::uint32_t pack(float low, float high);
template <>
FOVEA_DEVICE std::uint32_t pack<Bf16>(float low, float high) {
  std::uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
template <>
FOVEA_DEVICE std::uint32_t pack<F16>(float low, float high) {
  std::uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

/// One 16-bit number as f32.
template <class T>
FOVEA_DEVICE float widen(std::uint16_t bits);
template <>
FOVEA_DEVICE float widen<Bf16>(std::uint16_t bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}
template <>
FOVEA_DEVICE float widen<F16>(std::uint16_t bits) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(bits));
  return result;
}

/// x rounded to tf32, ties away from zero.
FOVEA_DEVICE std::uint32_t round_tf32(float x) {
  std::uint32_t result;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(x));
  return result;
}

#else

FOVEA_DEVICE float bits_to_float(std::uint32_t x) { return std::bit_cast<float>(x); }
FOVEA_DEVICE std::uint32_t float_to_bits(float x) { return std::bit_cast<std::uint32_t>(x); }

FOVEA_DEVICE float exp2(float x) {
  const float result = std::exp2(x);
  return result < 0x1p-126f ? 0.0f : result;
}
FOVEA_DEVICE float log2(float x) { return std::log2(x); }
FOVEA_DEVICE float tanh(float x) { return std::tanh(x); }
FOVEA_DEVICE float rsqrt(float x) { return 1.0f / std::sqrt(x); }
FOVEA_DEVICE float fma(float a, float b, float c) { return std::fma(a, b, c); }
FOVEA_DEVICE float max(float a, float b) { return std::fmax(a, b); }
FOVEA_DEVICE float multiply_up(float a, float b) {
  const float product = a * b;
  return std::fma(a, b, -product) > 0 ? std::nextafter(product, __builtin_inff()) : product;
}

template <class T>
std::uint32_t pack(float low, float high);
template <>
inline std::uint32_t pack<Bf16>(float low, float high) {
  return to_bf16(low).bits | static_cast<std::uint32_t>(to_bf16(high).bits) << 16;
}
template <>
inline std::uint32_t pack<F16>(float low, float high) {
  return to_f16(low).bits | static_cast<std::uint32_t>(to_f16(high).bits) << 16;
}

template <class T>
float widen(std::uint16_t bits) {
  return to_f32(T{bits});
}

FOVEA_DEVICE std::uint32_t round_tf32(float x) {
  const std::uint32_t bits = float_to_bits(x);
  if ((bits & 0x7F800000u) == 0x7F800000u) return bits;
  return (bits + 0x1000u) & ~0x1FFFu;
}

#endif

template <class T>
FOVEA_DEVICE float low_half(std::uint32_t word) {
  return widen<T>(static_cast<std::uint16_t>(word));
}
template <class T>
FOVEA_DEVICE float high_half(std::uint32_t word) {
  return widen<T>(static_cast<std::uint16_t>(word >> 16));
}

/// Element `index` counted from `data`, as f32.
FOVEA_DEVICE float load_element(const void* data, plain::Element element, std::int64_t index) {
  switch (element) {
    case plain::Element::f32:
      return static_cast<const float*>(data)[index];
    case plain::Element::f16:
      return widen<F16>(static_cast<const std::uint16_t*>(data)[index]);
    case plain::Element::bf16:
      return widen<Bf16>(static_cast<const std::uint16_t*>(data)[index]);
    default:
      return static_cast<float>(static_cast<const double*>(data)[index]);
  }
}

/// Stores `value` rounded to `element`.
FOVEA_DEVICE void store_element(void* data, plain::Element element, std::int64_t index,
                                float value) {
  switch (element) {
    case plain::Element::f32:
      static_cast<float*>(data)[index] = value;
      break;
    case plain::Element::f16:
      static_cast<std::uint16_t*>(data)[index] = static_cast<std::uint16_t>(pack<F16>(value, 0.0f));
      break;
    case plain::Element::bf16:
      static_cast<std::uint16_t*>(data)[index] =
          static_cast<std::uint16_t>(pack<Bf16>(value, 0.0f));
      break;
    default:
      static_cast<double*>(data)[index] = static_cast<double>(value);
      break;
  }
}

inline constexpr float kLog2e = 1.44269504088896340736f;
inline constexpr float kInfinity = __builtin_inff();
inline constexpr float kNegativeInfinity = -__builtin_inff();

FOVEA_DEVICE bool is_finite(float x) { return __builtin_fabsf(x) < kInfinity; }

}  // namespace fovea::cuda::FOVEA_WORLD
