// Files that appear whole or not at all: written under a temporary name, then renamed.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>

#include <fovea/status.h>

namespace fovea::io {

/// Writes `path`, or what it links to, through a temporary file beside it. Without commit() nothing
/// remains.
class AtomicFile {
 public:
  static Result<AtomicFile> create(const std::string& name);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  ~AtomicFile();

  Status write(const void* data, std::size_t bytes);
  /// Flushes to the disk and gives the file its name.
  Status commit();

 private:
  AtomicFile(std::string path, std::string temporary, std::FILE* file);
  void discard();

  std::string path_, temporary_;
  std::FILE* file_ = nullptr;
};

/// What would keep create() from working; found by trying.
Status check_writable(const std::string& path);

}  // namespace fovea::io
