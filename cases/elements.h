// Elements of tensor views as f64, and walks over all elements of a view.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <fovea/tensor.h>

namespace fovea::cases {

namespace detail {

inline float f32_from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// x rounded to a binary format of `mantissa` stored bits and the given exponent range, to nearest
/// even, by scaling: exact in f64.
inline double round_to_format(double x, int mantissa, int min_exponent, double largest) {
  if (!std::isfinite(x) || x == 0) return x;
  int exponent = 0;
  std::frexp(x, &exponent);
  const int unit = std::max(exponent - 1, min_exponent) - mantissa;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
  if (std::abs(rounded) > largest) return std::copysign(HUGE_VAL, x);
  return rounded;
}

inline std::uint16_t bf16_from(double x) {
  if (std::isnan(x)) return 0x7FC0;
  const double rounded = round_to_format(x, 7, -126, 0x1.FEp127);
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(rounded)) >>
                                    16);
}

inline double f64_from_f16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

inline std::uint16_t f16_from(double x) {
  if (std::isnan(x)) return 0x7E00;
  const auto sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const double rounded = std::abs(round_to_format(x, 10, -14, 65504));
  if (std::isinf(rounded)) return sign | 0x7C00;
  if (rounded < 0x1p-14) return sign | static_cast<std::uint16_t>(std::ldexp(rounded, 24));
  int exponent = 0;
  const double fraction = std::frexp(rounded, &exponent);
  return sign | static_cast<std::uint16_t>((exponent + 14) << 10 |
                                           (static_cast<int>(std::ldexp(fraction, 11)) & 1023));
}

}  // namespace detail

/// Element `offset` (in elements from `data`), any dtype that tensors of cases have.
inline double load(const void* data, DType dtype, std::int64_t offset) {
  switch (dtype) {
    case DType::f64:
      return static_cast<const double*>(data)[offset];
    case DType::f32:
      return static_cast<double>(static_cast<const float*>(data)[offset]);
    case DType::bf16:
      return static_cast<double>(
          detail::f32_from_bf16(static_cast<const std::uint16_t*>(data)[offset]));
    case DType::f16:
      return detail::f64_from_f16(static_cast<const std::uint16_t*>(data)[offset]);
    case DType::i64:
      return static_cast<double>(static_cast<const std::int64_t*>(data)[offset]);
    case DType::i32:
      return static_cast<double>(static_cast<const std::int32_t*>(data)[offset]);
    default:
      return static_cast<double>(static_cast<const std::uint8_t*>(data)[offset]);
  }
}

/// Writes x, rounded to nearest even.
inline void store(void* data, DType dtype, std::int64_t offset, double x) {
  switch (dtype) {
    case DType::f64:
      static_cast<double*>(data)[offset] = x;
      break;
    case DType::f32:
      static_cast<float*>(data)[offset] = static_cast<float>(x);
      break;
    case DType::bf16:
      static_cast<std::uint16_t*>(data)[offset] = detail::bf16_from(x);
      break;
    case DType::f16:
      static_cast<std::uint16_t*>(data)[offset] = detail::f16_from(x);
      break;
    case DType::i64:
      static_cast<std::int64_t*>(data)[offset] = static_cast<std::int64_t>(x);
      break;
    case DType::i32:
      static_cast<std::int32_t*>(data)[offset] = static_cast<std::int32_t>(x);
      break;
    default:
      static_cast<std::uint8_t*>(data)[offset] = static_cast<std::uint8_t>(x);
      break;
  }
}

/// The largest finite value.
inline double largest_finite(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 65504;
    case DType::bf16:
      return 0x1.FEp127;
    case DType::f32:
      return static_cast<double>(std::numeric_limits<float>::max());
    default:
      return std::numeric_limits<double>::max();
  }
}

using Index = std::array<std::int64_t, kMaxRank>;

/// Offset of an element in elements.
template <class View>
std::int64_t offset_of(const View& view, const Index& index) {
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < static_cast<std::size_t>(view.rank); ++d) {
    offset += index[d] * view.strides[d];
  }
  return offset;
}

/// f(index) for every row of the last dimension, in row-major order of the shape; index is that of
/// the row's first element.
template <class View, class F>
void for_each_row(const View& view, F&& f) {
  if (view.elements() == 0) return;
  Index index{};
  while (true) {
    f(index);
    int d = view.rank - 2;
    for (; d >= 0; --d) {
      const auto n = static_cast<std::size_t>(d);
      if (++index[n] < view.shape[n]) break;
      index[n] = 0;
    }
    if (d < 0) return;
  }
}

/// Elements of a row, and how far apart they lie; a tensor of rank 0 is one row of one element.
struct RowShape {
  std::int64_t size = 1, stride = 0;
};
template <class View>
RowShape row_shape(const View& view) {
  if (view.rank == 0) return {};
  const auto last = static_cast<std::size_t>(view.rank - 1);
  return {view.shape[last], view.strides[last]};
}

/// f(offset, index) for every element in row-major order of the shape.
template <class View, class F>
void for_each_element(const View& view, F&& f) {
  const RowShape row = row_shape(view);
  const auto last = static_cast<std::size_t>(std::max(view.rank - 1, 0));
  for_each_row(view, [&](Index index) {
    std::int64_t offset = offset_of(view, index);
    for (; index[last] < row.size; ++index[last], offset += row.stride) f(offset, index);
  });
}

}  // namespace fovea::cases
