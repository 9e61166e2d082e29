// A workspace laid out: asked for without memory it measures, with memory it hands out.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fovea::cuda {

class Workspace {
 public:
  /// base may be null: what take() gives is then no memory, and bytes() is what is needed.
  explicit Workspace(std::byte* base) : base_(base) {}

  /// `count` elements at a multiple of 256 bytes.
  template <class T>
  T* take(std::int64_t count) {
    constexpr std::size_t kAlignment = 256;
    std::byte* at = base_ == nullptr ? nullptr : base_ + bytes_;
    bytes_ +=
        (static_cast<std::size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return reinterpret_cast<T*>(at);
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  std::size_t bytes_ = 0;
};

}  // namespace fovea::cuda
