// A small CPU tensor with shared storage and memory accounting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fovea/tensor.h>

namespace fovea::lm {

using Shape = std::vector<std::int64_t>;

/// "[2, 3, 4]"
std::string to_string(const Shape& shape);

/// Product of the dimensions. Throws fovea::Error on a negative dimension or 64-bit overflow.
std::int64_t element_count(const Shape& shape);

/// Memory held by tensors of this process, in bytes.
struct TensorMemory {
  std::int64_t current_bytes = 0;  ///< in live tensors
  std::int64_t peak_bytes = 0;     ///< largest current_bytes since reset_peak_tensor_memory()
  std::int64_t cached_bytes = 0;   ///< freed, kept for reuse
};
TensorMemory tensor_memory();
void reset_peak_tensor_memory();
/// Returns freed buffers that are kept for reuse to the system.
void release_cached_tensor_memory();

/// A handle: copies share the storage. `data()` of a const handle is writable, as with a pointer.
///
/// Tensors are row-major unless made by `strided()`. Undefined (default-constructed) tensors have
/// no storage; every member but `defined()` requires a defined one.
class Tensor {
 public:
  Tensor() = default;

  /// Uninitialised contents. Throws fovea::Error on a bad shape, `none` dtype or lack of memory.
  static Tensor empty(Shape shape, DType dtype = DType::f32);
  static Tensor zeros(Shape shape, DType dtype = DType::f32);
  /// A copy of `values`, whose number must be that of the shape's elements.
  static Tensor from(std::span<const float> values, Shape shape);

  [[nodiscard]] bool defined() const { return storage_ != nullptr; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] const Shape& strides() const { return strides_; }  ///< in elements
  [[nodiscard]] std::int64_t rank() const { return static_cast<std::int64_t>(shape_.size()); }
  /// Size of dimension `index`; negative counts from the end.
  [[nodiscard]] std::int64_t dim(std::int64_t index) const;
  [[nodiscard]] std::int64_t numel() const { return numel_; }
  [[nodiscard]] std::int64_t bytes() const { return numel_ * size_of(dtype_); }
  [[nodiscard]] bool contiguous() const;
  /// Whether no other tensor shares the storage.
  [[nodiscard]] bool unique() const { return storage_.use_count() == 1; }
  /// Whether both use the same storage.
  [[nodiscard]] bool shares_storage(const Tensor& other) const {
    return storage_ == other.storage_;
  }

  [[nodiscard]] void* raw() const;
  /// Throws fovea::Error unless the dtype is f32.
  [[nodiscard]] float* data() const;
  /// The elements of a contiguous f32 tensor.
  [[nodiscard]] std::span<float> values() const;
  /// The only element of a one-element f32 tensor.
  [[nodiscard]] float item() const;

  /// The same elements of a contiguous tensor under another shape of equal size.
  [[nodiscard]] Tensor view(Shape shape) const;
  /// A view of this storage: `offset` elements behind this tensor's first. The caller keeps it
  /// within the storage; leaving it throws fovea::Error.
  [[nodiscard]] Tensor strided(std::int64_t offset, Shape shape, Shape strides) const;
  /// A contiguous copy with its own storage.
  [[nodiscard]] Tensor clone() const;
  void zero() const;

  /// Views for the attention library. At most fovea::kMaxRank dimensions.
  [[nodiscard]] TensorView input_view() const { return as_view<const void*>(); }
  [[nodiscard]] MutableTensorView output_view() const { return as_view<void*>(); }

 private:
  struct Storage;
  template <class Pointer>
  [[nodiscard]] BasicTensorView<Pointer> as_view() const;

  std::shared_ptr<Storage> storage_;
  std::int64_t offset_ = 0;  // elements
  std::int64_t numel_ = 0;
  DType dtype_ = DType::none;
  Shape shape_, strides_;
};

/// to[...] = from[...] or, with `add`, to[...] += from[...]. Equal shapes, any strides, f32.
void copy_into(const Tensor& to, const Tensor& from, bool add = false);

}  // namespace fovea::lm
