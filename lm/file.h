// Files that are read with their size known and written whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace fovea::lm {

/// A regular file open for reading. Errors throw fovea::Error with the path and the system's
/// reason.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  /// Bytes when it was opened.
  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// Fills `to` from `offset`; a file that ends before is an error.
  void read_at(std::uint64_t offset, std::span<std::byte> to) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

/// Written under a temporary name beside `path`; commit() flushes it to the device and renames it
/// to `path`, so that a crash leaves either the old file or the new one. Without commit() nothing
/// stays.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
};

}  // namespace fovea::lm
