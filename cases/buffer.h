// Memory with guard bytes on both sides, poisoned with NaN patterns.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fovea::cases {

/// What fresh memory holds: every float dtype reads it as NaN.
inline constexpr std::byte kPoison{0xFF};

class Buffer {
 public:
  Buffer() = default;
  /// `bytes` of poison that begin `misalignment` bytes behind a 64-byte boundary.
  explicit Buffer(std::size_t bytes, std::size_t misalignment = 0);
  /// Address space that takes memory only where it is touched; zeros, no guards.
  static Buffer sparse(std::size_t bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] bool is_sparse() const { return sparse_; }
  /// All of the memory, the guards included.
  [[nodiscard]] std::byte* base() const { return base_; }
  [[nodiscard]] std::size_t all_bytes() const;
  [[nodiscard]] bool guards_intact() const;
  /// Of the contents; 0 for sparse memory.
  [[nodiscard]] std::uint64_t hash() const;

 private:
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool sparse_ = false;
};

}  // namespace fovea::cases
