#include "core/workspace_pool.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace fovea {
namespace {

constexpr std::size_t kAlignment = 64;
/// Idle memory kept beyond this is freed, the largest buffers first.
constexpr std::size_t kKeptBytes = std::size_t{256} << 20;

struct Buffer {
  std::byte* data;
  std::size_t capacity;
};

struct Pool {
  std::mutex mutex;
  std::vector<Buffer> idle;  ///< sorted by capacity
  std::size_t idle_bytes = 0;
};

Pool& pool() {
  static auto* instance = new Pool;
  return *instance;
}

}  // namespace

BorrowedWorkspace::BorrowedWorkspace(std::size_t bytes) {
  if (bytes == 0) return;
  Pool& p = pool();
  {
    const std::lock_guard lock(p.mutex);
    const auto fits = std::find_if(p.idle.begin(), p.idle.end(),
                                   [&](const Buffer& b) { return b.capacity >= bytes; });
    if (fits != p.idle.end()) {
      data_ = fits->data;
      capacity_ = fits->capacity;
      p.idle_bytes -= capacity_;
      p.idle.erase(fits);
      return;
    }
  }
  if (bytes > SIZE_MAX - kAlignment) return;
  capacity_ = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  data_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, capacity_));
}

BorrowedWorkspace::~BorrowedWorkspace() {
  if (data_ == nullptr) return;
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  const auto at = std::find_if(p.idle.begin(), p.idle.end(),
                               [&](const Buffer& b) { return b.capacity >= capacity_; });
  p.idle.insert(at, {data_, capacity_});
  p.idle_bytes += capacity_;
  while (p.idle_bytes > kKeptBytes) {
    p.idle_bytes -= p.idle.back().capacity;
    std::free(p.idle.back().data);
    p.idle.pop_back();
  }
}

void free_idle_workspaces() {
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  for (const Buffer& buffer : p.idle) std::free(buffer.data);
  p.idle.clear();
  p.idle_bytes = 0;
}

}  // namespace fovea
