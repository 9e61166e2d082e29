// A file opened for reading at given places, every read checked against its size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <fovea/status.h>

namespace fovea::io {

class InputFile {
 public:
  /// Regular files only.
  static Result<InputFile> open(const std::string& path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// Reads exactly `bytes` from `offset`; fails when the file ends before.
  Status read_at(std::uint64_t offset, void* to, std::size_t bytes) const;

 private:
  InputFile(std::string path, int descriptor, std::uint64_t size);

  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace fovea::io
