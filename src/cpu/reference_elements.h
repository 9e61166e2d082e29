// Elements of tensor views as f64, for kernels that favour clarity over speed: every float dtype is
// read exactly and written with one rounding.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include <fovea/tensor.h>

#include "contract/reference_formulas.h"

namespace fovea::reference {

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

/// Elements of a view from `offset` on, `stride` apart; an absent view has no data.
inline Elements elements_of(const TensorView& view, std::int64_t offset, std::int64_t stride) {
  return {view.data, view.dtype, offset, stride};
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
  store_rounded(view.data, view.dtype, offset, x);
}

}  // namespace fovea::reference
