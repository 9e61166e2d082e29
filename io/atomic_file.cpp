#include "io/atomic_file.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/paths.h"

namespace fovea::io {
namespace {

Status system_error(const char* what, const std::string& path) {
  return {StatusCode::invalid, fmt::format("{} {}: {}", what, path, std::strerror(errno))};
}

/// So that the rename outlives a crash; not every file system lets folders be flushed.
void flush_folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "."
                             : slash == 0               ? "/"
                                                        : path.substr(0, slash);
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace

AtomicFile::AtomicFile(std::string path, std::string temporary, std::FILE* file)
    : path_(std::move(path)), temporary_(std::move(temporary)), file_(file) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      file_(std::exchange(other.file_, nullptr)) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  if (this != &other) {
    discard();
    path_ = std::move(other.path_);
    temporary_ = std::move(other.temporary_);
    file_ = std::exchange(other.file_, nullptr);
  }
  return *this;
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  file_ = nullptr;
  ::unlink(temporary_.c_str());
}

Result<AtomicFile> AtomicFile::create(const std::string& name) {
  const std::string path = behind_links(name);
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return Status(StatusCode::invalid, fmt::format("cannot write {}: not a regular file", path));
  }
  std::string temporary = path + ".tmp.XXXXXX";
  const int descriptor = ::mkstemp(temporary.data());
  if (descriptor < 0) return system_error("cannot write", path);
  // mkstemp makes the file private; give it the mode that open() would have.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  ::fchmod(descriptor, 0666 & ~mask);
  std::FILE* file = ::fdopen(descriptor, "wb");
  if (file == nullptr) {
    const Status status = system_error("cannot write", path);
    ::close(descriptor);
    ::unlink(temporary.c_str());
    return status;
  }
  return AtomicFile(path, std::move(temporary), file);
}

Status AtomicFile::write(const void* data, std::size_t bytes) {
  if (bytes != 0 && std::fwrite(data, 1, bytes, file_) != bytes) {
    return system_error("cannot write", path_);
  }
  return {};
}

Status AtomicFile::commit() {
  if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) {
    return system_error("cannot write", path_);
  }
  std::FILE* file = std::exchange(file_, nullptr);
  if (std::fclose(file) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    Status status = system_error("cannot write", path_);
    ::unlink(temporary_.c_str());
    return status;
  }
  flush_folder_of(path_);
  return {};
}

Status check_writable(const std::string& path) { return AtomicFile::create(path).status(); }

}  // namespace fovea::io
