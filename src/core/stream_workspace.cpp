#include "core/stream_workspace.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "core/status_macros.h"

namespace fovea {

namespace detail {

struct StreamBuffer {
  const DeviceQueue& queue;
  const int device;
  const std::uint64_t name;  ///< of the queue behind the stream
  std::mutex mutex;
  void* data = nullptr;
  std::size_t bytes = 0;

  StreamBuffer(const DeviceQueue& its_queue, int its_device, std::uint64_t its_name)
      : queue(its_queue), device(its_device), name(its_name) {}
  StreamBuffer(const StreamBuffer&) = delete;
  StreamBuffer& operator=(const StreamBuffer&) = delete;
  ~StreamBuffer() { clear(); }

  void clear() {
    if (data != nullptr) queue.free(device, data);
    data = nullptr;
    bytes = 0;
  }

  Status grow(std::size_t wanted) {
    if (bytes >= wanted) return {};
    clear();
    // Powers of two up to here, so that calls that grow slowly do not allocate each time.
    constexpr std::size_t kRounded = std::size_t{256} << 20;
    const std::size_t size = wanted <= kRounded ? std::bit_ceil(wanted) : wanted;
    const Result<void*> memory = queue.allocate(device, size);
    if (!memory.ok()) return memory.status();
    data = *memory;
    bytes = size;
    return {};
  }
};

}  // namespace detail

namespace {

using detail::StreamBuffer;

/// With more streams than this, buffers of the ones not used lately are freed.
constexpr std::size_t kMostBuffers = 16;

struct Buffers {
  std::mutex mutex;
  std::vector<std::shared_ptr<StreamBuffer>> list;  ///< most recently used last
};

Buffers& buffers() {
  static auto* instance = new Buffers;
  return *instance;
}

std::shared_ptr<StreamBuffer> buffer_of(const DeviceQueue& queue, int device, std::uint64_t name) {
  std::shared_ptr<StreamBuffer> dropped;  // freed, which may wait, when the lock is released
  Buffers& all = buffers();
  const std::lock_guard lock(all.mutex);
  const auto same = std::find_if(all.list.begin(), all.list.end(), [&](const auto& buffer) {
    return &buffer->queue == &queue && buffer->device == device && buffer->name == name;
  });
  if (same != all.list.end()) {
    std::rotate(same, same + 1, all.list.end());
    return all.list.back();
  }
  if (all.list.size() >= kMostBuffers) {
    dropped = std::move(all.list.front());
    all.list.erase(all.list.begin());
  }
  return all.list.emplace_back(std::make_shared<StreamBuffer>(queue, device, name));
}

}  // namespace

Status StreamWorkspace::take(const DeviceQueue& queue, int device, void* stream,
                             std::size_t bytes) {
  buffer_ = buffer_of(queue, device, queue.queue_of(device, stream));
  lock_ = std::unique_lock(buffer_->mutex);
  return buffer_->grow(bytes);
}

std::byte* StreamWorkspace::data() const {
  return buffer_ == nullptr ? nullptr : static_cast<std::byte*>(buffer_->data);
}

void free_stream_workspaces() {
  std::vector<std::shared_ptr<StreamBuffer>> dropped;
  {
    Buffers& all = buffers();
    const std::lock_guard lock(all.mutex);
    dropped.swap(all.list);
  }
}

}  // namespace fovea
