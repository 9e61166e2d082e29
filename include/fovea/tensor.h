// Tensor views: how Fovea sees memory that somebody else owns.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include <fovea/export.h>

namespace fovea {

/// Element types. Floating-point types serve as operands; `boolean` (one byte, 0 = false) as masks;
/// the integers as lengths, tables and ids. fp8/int8/int4 are declared for the quantised modes.
enum class DType : std::uint8_t {
  none,  ///< no dtype: an absent tensor
  f32,
  f16,
  bf16,
  f64,
  boolean,
  i32,
  i64,
  i8,
  i4x2,  ///< two 4-bit values a byte
  fp8_e4m3,
  fp8_e5m2,
};

/// Bytes of one element (i4x2: of one pair); 0 for `none`.
constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::none:
      return 0;
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    default:
      return 1;
  }
}

/// Short lower-case name: "f32", "bf16", "bool", ...
FOVEA_API const char* name_of(DType dtype);

constexpr bool is_floating(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f64;
}

enum class DeviceType : std::uint8_t { cpu, cuda, metal };

/// A device: its type and its ordinal within the type.
struct Device {
  DeviceType type = DeviceType::cpu;
  std::int32_t index = 0;
  friend constexpr bool operator==(const Device&, const Device&) = default;
};

FOVEA_API const char* name_of(DeviceType type);

inline constexpr int kMaxRank = 5;

/// A non-owning strided view. `Pointer` is `const void*` (inputs) or `void*` (outputs).
///
/// Strides are in elements, may be zero (expanded) or negative, and are ignored where the size
/// is 1. A view without elements may have a null pointer. A default-constructed view is *absent*:
/// optional arguments are views that may be absent.
template <class Pointer>
struct BasicTensorView {
  Pointer data = nullptr;
  DType dtype = DType::none;
  Device device;
  std::int32_t rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};

  BasicTensorView() = default;

  /// A contiguous (row-major) view. More than kMaxRank dimensions are reported as rank -1, which
  /// validation refuses.
  BasicTensorView(Pointer pointer, DType type, std::initializer_list<std::int64_t> dims,
                  Device where = {})
      : data(pointer), dtype(type), device(where) {
    set_dims(shape, dims);
    std::int64_t stride = 1;
    for (int i = rank - 1; i >= 0; --i) {
      strides[static_cast<std::size_t>(i)] = stride;
      if (__builtin_mul_overflow(stride, shape[static_cast<std::size_t>(i)], &stride)) stride = 0;
    }
  }

  /// A view with explicit strides, in elements.
  BasicTensorView(Pointer pointer, DType type, std::initializer_list<std::int64_t> dims,
                  std::initializer_list<std::int64_t> steps, Device where = {})
      : data(pointer), dtype(type), device(where) {
    set_dims(strides, steps);
    const std::int32_t steps_rank = rank;
    set_dims(shape, dims);
    if (steps_rank != rank) rank = -1;
  }

  /// A view of mutable memory is also a view of constant memory.
  template <class Other>
  requires(std::is_same_v<Pointer, const void*>&& std::is_same_v<Other, void*>)
      BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT(google-explicit-constructor)
      : data(other.data),
        dtype(other.dtype),
        device(other.device),
        rank(other.rank),
        shape(other.shape),
        strides(other.strides) {}

  /// Whether the argument was given at all (it may still hold no elements).
  [[nodiscard]] bool present() const { return dtype != DType::none; }

  /// Number of elements; 1 for rank 0. Only meaningful once validated (no overflow check).
  [[nodiscard]] std::int64_t elements() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[static_cast<std::size_t>(i)];
    return n;
  }

 private:
  void set_dims(std::array<std::int64_t, kMaxRank>& to, std::initializer_list<std::int64_t> from) {
    rank = from.size() <= kMaxRank ? static_cast<std::int32_t>(from.size()) : -1;
    std::size_t i = 0;
    for (const std::int64_t value : from) {
      if (i < kMaxRank) to[i++] = value;
    }
  }
};

using TensorView = BasicTensorView<const void*>;
using MutableTensorView = BasicTensorView<void*>;

namespace detail {
template <class Pointer>
using ViewOf = BasicTensorView<
    std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const void*, void*>>;
}

/// View of memory laid out [batch, heads, seq, dim], the logical order.
template <class Pointer>
detail::ViewOf<Pointer> bhsd(Pointer data, DType dtype, std::int64_t batch, std::int64_t heads,
                             std::int64_t seq, std::int64_t dim, Device device = {}) {
  return {data, dtype, {batch, heads, seq, dim}, device};
}

/// Logical [batch, heads, seq, dim] view of memory laid out [batch, seq, heads, dim].
template <class Pointer>
detail::ViewOf<Pointer> bshd(Pointer data, DType dtype, std::int64_t batch, std::int64_t seq,
                             std::int64_t heads, std::int64_t dim, Device device = {}) {
  return {data, dtype, {batch, heads, seq, dim}, {seq * heads * dim, dim, heads * dim, 1}, device};
}

/// Three views q, k, v of one packed projection.
template <class Pointer>
struct PackedQkv {
  detail::ViewOf<Pointer> q, k, v;
};

/// Logical [batch, heads, seq, dim] views of memory laid out [batch, seq, 3, heads, dim].
/// `data` is a typed pointer or `void*`; the offsets are computed in bytes.
template <class Pointer>
PackedQkv<Pointer> packed_qkv(Pointer data, DType dtype, std::int64_t batch, std::int64_t seq,
                              std::int64_t heads, std::int64_t dim, Device device = {}) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>,
                                  const unsigned char, unsigned char>;
  const std::int64_t row = heads * dim;
  auto part = [&](std::int64_t index) -> detail::ViewOf<Pointer> {
    Byte* base = reinterpret_cast<Byte*>(data);
    if (base != nullptr) base += index * row * size_of(dtype);
    return {base, dtype, {batch, heads, seq, dim}, {seq * 3 * row, dim, 3 * row, 1}, device};
  };
  return {part(0), part(1), part(2)};
}

/// Varlen view [total, heads, dim] of contiguous memory (see Varlen in attention.h).
template <class Pointer>
detail::ViewOf<Pointer> packed_rows(Pointer data, DType dtype, std::int64_t total,
                                    std::int64_t heads, std::int64_t dim, Device device = {}) {
  return {data, dtype, {total, heads, dim}, device};
}

}  // namespace fovea
