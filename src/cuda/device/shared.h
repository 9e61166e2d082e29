// Shared memory of a block: arrays within the launch's dynamic shared memory. A new block finds
// garbage in it; the emulation makes that NaN, and checks arrays, indices and alignment.
#pragma once

#include "cuda/device/platform.h"

namespace fovea::cuda::FOVEA_WORLD {

template <class T>
class Shared {
 public:
#if defined(__CUDACC__)
  FOVEA_DEVICE Shared(T* data, int) : data_(data) {}

  FOVEA_DEVICE T& operator[](int index) const { return data_[index]; }
  /// The same bytes as another type.
  template <class U>
  FOVEA_DEVICE Shared<U> as() const {
    return Shared<U>(reinterpret_cast<U*>(data_), 0);
  }
  /// Elements [first, first + count).
  FOVEA_DEVICE Shared from(int first, int) const { return Shared(data_ + first, 0); }

  /// The address within shared memory of an element, as PTX wants it.
  FOVEA_DEVICE std::uint32_t address(int index) const {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(data_ + index));
  }

 private:
  T* data_;
#else
  Shared(T* data, int size) : data_(data), count(size) {}

  T& operator[](int index) const { return *range(index, 1); }
  template <class U>
  Shared<U> as() const {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
    emulation::check_aligned(data_, alignof(U), "an array of shared memory");
    return Shared<U>(reinterpret_cast<U*>(data_), static_cast<int>(bytes / sizeof(U)));
  }
  Shared from(int first, int size) const { return Shared(range(first, size), size); }
  std::uint32_t address(int index) const { return emulation::shared_address(data_ + index); }

  /// Elements [first, first + size), which must lie within the array.
  T* range(int first, int size) const {
    if (first < 0 || size < 0 || first > count - size) emulation::fail_range(first, size, count);
    return data_ + first;
  }

 private:
  T* data_;

 public:
  int count;
#endif
};

#if defined(__CUDACC__)
/// `count` elements that begin `byte_offset` into the launch's dynamic shared memory.
template <class T>
FOVEA_DEVICE Shared<T> shared_array(int byte_offset, int count) {
  extern __shared__ __align__(1024) unsigned char fovea_shared_bytes[];
  return Shared<T>(reinterpret_cast<T*>(fovea_shared_bytes + byte_offset), count);
}
#else
template <class T>
Shared<T> shared_array(int byte_offset, int count) {
  std::byte* data = emulation::shared_bytes(byte_offset, count, sizeof(T));
  emulation::check_aligned(data, alignof(T), "an array of shared memory");
  return Shared<T>(reinterpret_cast<T*>(data), count);
}
#endif

}  // namespace fovea::cuda::FOVEA_WORLD
