#include "lm/file.h"

#include <atomic>
#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lm/error.h"

namespace fovea::lm {
namespace {

std::string reason() { return std::error_code(errno, std::generic_category()).message(); }

void sync_folder(const std::filesystem::path& folder) {
  const std::string name = folder.empty() ? "." : folder.string();
  const int descriptor = open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;  // the rename has happened; not every file system lets folders sync
  fsync(descriptor);
  close(descriptor);
}

}  // namespace

InputFile::InputFile(const std::filesystem::path& path) : path_(path.string()) {
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail("[file] cannot open {}: {}", path_, reason());
  struct stat status = {};
  const bool regular = fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode);
  if (!regular) {
    close(descriptor_);
    fail("[file] {} is not a regular file", path_);
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

InputFile::~InputFile() { close(descriptor_); }

void InputFile::read_at(std::uint64_t offset, std::span<std::byte> to) const {
  std::size_t done = 0;
  while (done < to.size()) {
    const ssize_t count =
        pread(descriptor_, to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("[file] cannot read {}: {}", path_, reason());
    if (count == 0) {
      fail("[file] {} ends at byte {}; {} bytes from {} are wanted", path_, offset + done,
           to.size(), offset);
    }
    done += static_cast<std::size_t>(count);
  }
}

AtomicFile::AtomicFile(const std::filesystem::path& path) : path_(path) {
  static std::atomic<int> next{0};
  temporary_ = path;
  temporary_ += fmt::format(".tmp-{}-{}", getpid(), next++);
  descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail("[file] cannot create {}: {}", temporary_.string(), reason());
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::write(descriptor_, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("[file] cannot write {}: {}", temporary_.string(), reason());
    done += static_cast<std::size_t>(count);
  }
}

void AtomicFile::commit() {
  if (fsync(descriptor_) != 0) {
    fail("[file] cannot flush {}: {}", temporary_.string(), reason());
  }
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail("[file] cannot rename {} to {}: {}", temporary_.string(), path_.string(), reason());
  }
  close(descriptor_);
  descriptor_ = -1;
  sync_folder(path_.parent_path());
}

}  // namespace fovea::lm
