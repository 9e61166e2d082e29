#include "cases/buffer.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include <sys/mman.h>

namespace fovea::cases {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kGuardBytes = 256;
constexpr std::byte kGuard{0xA5};

}  // namespace

Buffer::Buffer(std::size_t bytes, std::size_t misalignment) : bytes_(bytes) {
  const std::size_t total = kGuardBytes + misalignment + bytes + kGuardBytes;
  base_ = static_cast<std::byte*>(::operator new (total, std::align_val_t{kAlignment}));
  data_ = base_ + kGuardBytes + misalignment;
  std::fill(base_, data_, kGuard);
  std::fill(data_, data_ + bytes, kPoison);
  std::fill(data_ + bytes, data_ + bytes + kGuardBytes, kGuard);
}

Buffer Buffer::sparse(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  Buffer buffer;
  buffer.base_ = buffer.data_ = static_cast<std::byte*>(memory);
  buffer.bytes_ = bytes;
  buffer.sparse_ = true;
  return buffer;
}

Buffer::Buffer(Buffer&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      sparse_(other.sparse_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(sparse_, other.sparse_);
  return *this;
}

Buffer::~Buffer() {
  if (base_ == nullptr) return;
  if (sparse_) {
    ::munmap(base_, bytes_);
  } else {
    ::operator delete (base_, std::align_val_t{kAlignment});
  }
}

std::size_t Buffer::all_bytes() const {
  if (base_ == nullptr || sparse_) return bytes_;
  return static_cast<std::size_t>(data_ - base_) + bytes_ + kGuardBytes;
}

bool Buffer::guards_intact() const {
  if (base_ == nullptr || sparse_) return true;
  const auto is_guard = [](std::byte b) { return b == kGuard; };
  return std::all_of(base_, data_, is_guard) &&
         std::all_of(data_ + bytes_, data_ + bytes_ + kGuardBytes, is_guard);
}

std::uint64_t Buffer::hash() const {
  if (sparse_) return 0;
  std::uint64_t hash = 0xCBF29CE484222325u;
  std::size_t at = 0;
  for (; at + 8 <= bytes_; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data_ + at, 8);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  for (; at < bytes_; ++at) hash = (hash ^ static_cast<std::uint64_t>(data_[at])) * 0x100000001B3u;
  return hash;
}

}  // namespace fovea::cases
