#include "io/input_file.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fovea::io {

InputFile::InputFile(std::string path, int descriptor, std::uint64_t size)
    : path_(std::move(path)), descriptor_(descriptor), size_(size) {}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  return *this;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<InputFile> InputFile::open(const std::string& path) {
  // O_NONBLOCK: a pipe without a writer is refused below instead of blocking here.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    return Status(StatusCode::invalid,
                  fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  }
  struct stat info {};
  if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(descriptor);
    return Status(StatusCode::invalid, fmt::format("cannot read {}: not a regular file", path));
  }
  return InputFile(path, descriptor, static_cast<std::uint64_t>(info.st_size));
}

Status InputFile::read_at(std::uint64_t offset, void* to, std::size_t bytes) const {
  if (offset > size_ || bytes > size_ - offset) {
    return {StatusCode::invalid,
            fmt::format("{}: bytes {}..{} are beyond the end of the file ({} bytes)", path_, offset,
                        offset + bytes, size_)};
  }
  auto* out = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_, out, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return {StatusCode::invalid,
              fmt::format("cannot read {}: {}", path_,
                          got < 0 ? std::strerror(errno) : "the file became shorter")};
    }
    out += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
  return {};
}

}  // namespace fovea::io
