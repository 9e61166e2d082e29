// Elementwise mathematics in a form that compilers vectorise, and the attribute that compiles a
// loop once per instruction set.
#pragma once

#include <bit>
#include <cstdint>

// GCC's ifunc resolvers run before the sanitizers' runtimes are up.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FOVEA_LM_CLONES \
  __attribute__((target_clones("default", "arch=haswell", "arch=skylake-avx512")))
#else
#define FOVEA_LM_CLONES
#endif
#define FOVEA_LM_INLINE inline __attribute__((always_inline))

namespace fovea::lm::simd {

/// e^x to 2 ulp for x in [-87, 88], clamped outside.
FOVEA_LM_INLINE float exp(float x) {
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  // Adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits.
  constexpr float kMagic = 12582912.0F;
  const float shifted = x * 1.44269504F + kMagic;
  const float n = shifted - kMagic;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const std::int32_t exponent =
      (std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kMagic)) << 23;
  return std::bit_cast<float>(std::bit_cast<std::int32_t>(p) + exponent);
}

/// tanh(x) to an absolute error of 1e-7.
FOVEA_LM_INLINE float tanh(float x) { return 1.0F - 2.0F / (exp(2.0F * x) + 1.0F); }

/// Sums are kept in this many partial sums, whatever the register width.
inline constexpr int kLanes = 16;

/// Adds the partial sums in a fixed order.
FOVEA_LM_INLINE float sum_lanes(const float* lanes) {
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += lanes[i];
  return sum;
}

}  // namespace fovea::lm::simd
