// Workspaces in device memory for runs whose caller brings none: one buffer for each stream, which
// orders its uses.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include "contract/backend.h"

namespace fovea {

namespace detail {
struct StreamBuffer;
}

class StreamWorkspace {
 public:
  /// Takes the stream's buffer, made or made larger (which may wait for the device) when it has
  /// fewer bytes. As long as this object lives, no other run may queue work that uses it.
  Status take(const DeviceQueue& queue, int device, void* stream, std::size_t bytes);

  /// Null when nothing was taken.
  [[nodiscard]] std::byte* data() const;

 private:
  std::shared_ptr<detail::StreamBuffer> buffer_;
  std::unique_lock<std::mutex> lock_;
};

/// Frees the buffers of all streams.
void free_stream_workspaces();

}  // namespace fovea
