// f16, bf16 and tf32 conversions against the compiler's.
#include "contract/float_types.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "cpu/reference_elements.h"

namespace fovea::oracle {
namespace {

__extension__ using NativeF16 = _Float16;

float native_to_f32(std::uint16_t bits) {
  NativeF16 x;
  std::memcpy(&x, &bits, sizeof x);
  return static_cast<float>(x);
}

template <class From>
std::uint16_t native_f16(From x) {
  const auto half = static_cast<NativeF16>(x);
  std::uint16_t bits;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
}

/// bf16 by definition: the nearer of the two neighbours of x in f64, the even one in a tie.
std::uint16_t bf16_by_definition(double x) {
  if (std::isinf(x)) return x > 0 ? 0x7F80 : 0xFF80;
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::abs(x);
  const auto value = [](std::uint32_t bits) {
    return bits == 0x7F80 ? 0x1p128
                          : static_cast<double>(to_f32(Bf16{static_cast<std::uint16_t>(bits)}));
  };
  std::uint32_t below = 0, above = 0x7F80;  // binary search: value(below) <= |x| <= value(above)
  if (magnitude >= value(above)) return static_cast<std::uint16_t>(sign | 0x7F80);
  while (above - below > 1) {
    const std::uint32_t middle = (below + above) / 2;
    (value(middle) <= magnitude ? below : above) = middle;
  }
  const double down = magnitude - value(below), up = value(above) - magnitude;
  const bool take_above = up < down || (up == down && below % 2 == 1);
  return static_cast<std::uint16_t>(sign | (take_above ? above : below));
}

TEST(FloatTypes, f16_to_f32_exhaustive) {
  for (std::uint32_t n = 0; n < 65536; ++n) {
    const auto bits = static_cast<std::uint16_t>(n);
    const float got = to_f32(F16{bits}), want = native_to_f32(bits);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << n;
      ASSERT_EQ(std::signbit(got), std::signbit(want));
      ASSERT_EQ(to_f16(got).bits & 0x7C00, 0x7C00);
      ASSERT_NE(to_f16(got).bits & 0x03FF, 0) << "NaN became infinity";
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(want)) << n;
      ASSERT_EQ(to_f16(got).bits, bits);
    }
  }
}

TEST(FloatTypes, bf16_to_f32_exhaustive) {
  for (std::uint32_t n = 0; n < 65536; ++n) {
    const auto bits = static_cast<std::uint16_t>(n);
    const float got = to_f32(Bf16{bits});
    if (std::isnan(got)) {
      ASSERT_NE(to_bf16(got).bits & 0x7F, 0) << "NaN became infinity";
      ASSERT_EQ(to_bf16(got).bits & 0x7F80, 0x7F80);
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(got), n << 16);
      ASSERT_EQ(to_bf16(got).bits, bits);
    }
  }
}

void check_f32(float x) {
  if (std::isnan(x)) {
    ASSERT_TRUE(std::isnan(to_f32(to_f16(x))) && std::isnan(to_f32(to_bf16(x))));
    return;
  }
  ASSERT_EQ(to_f16(x).bits, native_f16(x)) << x;
  ASSERT_EQ(to_bf16(x).bits, bf16_by_definition(static_cast<double>(x))) << x;
}

TEST(FloatTypes, rounding_of_random_f32) {
  std::mt19937_64 random(3);
  for (int n = 0; n < 2000000; ++n)
    check_f32(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
}

TEST(FloatTypes, rounding_at_and_beside_every_tie) {
  for (std::uint32_t n = 0; n < 65535; ++n) {
    for (const bool half : {true, false}) {
      const auto low = static_cast<std::uint16_t>(n), high = static_cast<std::uint16_t>(n + 1);
      const auto value = [&](std::uint16_t bits) {
        return half ? static_cast<double>(to_f32(F16{bits}))
                    : static_cast<double>(to_f32(Bf16{bits}));
      };
      double above = value(high);
      if (half && (high & 0x7FFF) == 0x7C00) above = std::copysign(0x1p16, value(low));
      if (!half && (high & 0x7FFF) == 0x7F80) above = std::copysign(0x1p128, value(low));
      const double middle = (value(low) + above) / 2;
      if (!std::isfinite(middle)) continue;
      const auto tie = static_cast<float>(middle);
      for (const float x : {tie, std::nextafter(tie, HUGE_VALF), std::nextafter(tie, -HUGE_VALF)})
        check_f32(x);
    }
  }
}

TEST(FloatTypes, f64_is_rounded_once) {
  using reference::round_to;
  // Just above a tie of the narrow format, by less than f32 can tell.
  EXPECT_EQ(round_to(DType::bf16, 1 + 0x1p-8 + 0x1p-50), 1 + 0x1p-7);
  EXPECT_EQ(round_to(DType::f16, 1 + 0x1p-11 + 0x1p-50), 1 + 0x1p-10);
  EXPECT_EQ(round_to(DType::f16, -1 - 0x1p-11 - 0x1p-50), -1 - 0x1p-10);
  EXPECT_EQ(round_to(DType::bf16, 1 + 0x1p-8), 1);
  EXPECT_EQ(round_to(DType::f16, 65519.999999999), 65504);
  EXPECT_TRUE(std::isinf(round_to(DType::f16, 65520)));
  EXPECT_TRUE(std::isinf(round_to(DType::bf16, 1e300)));
  EXPECT_TRUE(std::isnan(round_to(DType::bf16, std::nan(""))));
  EXPECT_EQ(round_to(DType::f64, 1 + 0x1p-50), 1 + 0x1p-50);

  std::mt19937_64 random(4);
  for (int n = 0; n < 1000000; ++n) {
    // Near a tie of f16, where f32 would round first.
    const float base = native_to_f32(static_cast<std::uint16_t>(random() % 0x7800));
    const double nudge =
        std::ldexp(static_cast<double>(random() % 1000), -62) * (random() % 2 ? 1 : -1);
    const double x = static_cast<double>(base) * (1 + 0x1p-11) + nudge;
    ASSERT_EQ(round_to(DType::f16, x), static_cast<double>(native_to_f32(native_f16(x)))) << x;
    const double y =
        static_cast<double>(to_f32(Bf16{static_cast<std::uint16_t>(random() % 0x7F00)})) *
            (1 + 0x1p-8) +
        nudge;
    ASSERT_EQ(round_to(DType::bf16, y), static_cast<double>(to_f32(Bf16{bf16_by_definition(y)})))
        << y;
  }
}

TEST(FloatTypes, tf32_keeps_ten_bits) {
  using reference::round_to_tf32;
  EXPECT_EQ(round_to_tf32(1 + 0x1p-10f), 1 + 0x1p-10f);
  EXPECT_EQ(round_to_tf32(1 + 0x1p-11f), 1);  // a tie, to even
  EXPECT_EQ(round_to_tf32(1 + 0x1.8p-10f), 1 + 0x1p-9f);
  EXPECT_EQ(round_to_tf32(1 + 0x1.01p-11f), 1 + 0x1p-10f);
  EXPECT_TRUE(std::isinf(round_to_tf32(std::numeric_limits<float>::infinity())));
  EXPECT_TRUE(std::isnan(round_to_tf32(std::nanf(""))));
}

}  // namespace
}  // namespace fovea::oracle
