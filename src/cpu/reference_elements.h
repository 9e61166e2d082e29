// Elements of tensor views as f64, for kernels that favour clarity over speed: every float dtype is
// read exactly and written with one rounding.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include <fovea/tensor.h>

#include "contract/elements.h"
#include "contract/float_types.h"

namespace fovea::reference {

/// x in f32, rounded to odd: a further rounding to a format at least two bits narrower then gives
/// the same result as one rounding of x.
inline float narrow_to_odd(double x) {
  const auto nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) == x || std::isnan(x)) return nearest;
  if ((std::bit_cast<std::uint32_t>(nearest) & 1u) != 0) return nearest;
  const float towards = static_cast<double>(nearest) < x ? HUGE_VALF : -HUGE_VALF;
  return std::nextafter(nearest, towards);
}

/// x rounded once, to nearest even, to a float dtype.
inline double round_to(DType dtype, double x) {
  switch (dtype) {
    case DType::f32:
      return static_cast<double>(static_cast<float>(x));
    case DType::f16:
      return static_cast<double>(to_f32(to_f16(narrow_to_odd(x))));
    case DType::bf16:
      return static_cast<double>(to_f32(to_bf16(narrow_to_odd(x))));
    default:
      return x;
  }
}

/// x rounded to nearest even to the 10 mantissa bits of tf32.
inline float round_to_tf32(float x) {
  if (!std::isfinite(x)) return x;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  bits += 0xFFFu + ((bits >> 13) & 1u);
  return std::bit_cast<float>(bits & ~0x1FFFu);
}

/// Element of a float tensor; `offset` in elements from its data pointer.
inline double load(const TensorView& view, std::int64_t offset) {
  return load_element(view.data, view.dtype, offset);
}

/// Element of an i32, i64 or boolean tensor.
inline std::int64_t load_integer(const TensorView& view, std::int64_t offset) {
  switch (view.dtype) {
    case DType::i64:
      return static_cast<const std::int64_t*>(view.data)[offset];
    case DType::i32:
      return static_cast<const std::int32_t*>(view.data)[offset];
    default:
      return static_cast<const std::uint8_t*>(view.data)[offset];
  }
}

/// Writes x to a float tensor, rounded once to its dtype.
inline void store(const MutableTensorView& view, std::int64_t offset, double x) {
  store_element(view.data, view.dtype, offset, round_to(view.dtype, x));
}

}  // namespace fovea::reference
