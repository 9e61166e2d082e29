#include <cstdlib>
#include <cstring>

#include <fovea/device_memory.h>

#include "api/guarded.h"
#include "contract/format.h"
#include "core/devices.h"
#include "core/status_macros.h"

namespace fovea {
namespace {

constexpr std::size_t kAlignment = 64;

Status check_range(const DeviceBuffer& buffer, const void* host, std::size_t bytes,
                   std::size_t offset) {
  if (offset > buffer.bytes() || bytes > buffer.bytes() - offset)
    return {StatusCode::invalid, formatted("[device memory] {} bytes from {} on do not fit into "
                                           "a buffer of {} bytes",
                                           bytes, offset, buffer.bytes())};
  if (host == nullptr && bytes > 0)
    return {StatusCode::invalid, "[device memory] the host's pointer is null"};
  return {};
}

}  // namespace

Result<DeviceBuffer> DeviceBuffer::make(const Device& device, std::size_t bytes) {
  return guarded([&]() -> Result<DeviceBuffer> {
    FOVEA_RETURN_IF_ERROR(check_device("device memory", device));
    DeviceBuffer buffer;
    buffer.device_ = device;
    // Memory of no bytes has an address too, so that views of it are not null.
    const std::size_t size = bytes == 0 ? 1 : bytes;
    if (const DeviceQueue* queue = queue_of(device)) {
      const Result<void*> memory = queue->allocate(device.index, size);
      if (!memory.ok()) return memory.status();
      buffer.data_ = *memory;
    } else if (size <= SIZE_MAX - kAlignment) {
      buffer.data_ =
          std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
    }
    if (buffer.data_ == nullptr)
      return Status(StatusCode::out_of_memory,
                    formatted("[device memory] could not allocate {} bytes", bytes));
    buffer.bytes_ = bytes;
    return buffer;
  });
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  if (const DeviceQueue* queue = queue_of(device_))
    queue->free(device_.index, data_);
  else
    std::free(data_);
}

Status DeviceBuffer::upload(const void* from, std::size_t bytes, std::size_t offset) {
  return guarded([&]() -> Status {
    FOVEA_RETURN_IF_ERROR(check_range(*this, from, bytes, offset));
    if (bytes == 0) return {};
    std::byte* to = static_cast<std::byte*>(data_) + offset;
    if (const DeviceQueue* queue = queue_of(device_))
      return queue->upload(device_.index, to, from, bytes);
    std::memcpy(to, from, bytes);
    return {};
  });
}

Status DeviceBuffer::download(void* to, std::size_t bytes, std::size_t offset) const {
  return guarded([&]() -> Status {
    FOVEA_RETURN_IF_ERROR(check_range(*this, to, bytes, offset));
    if (bytes == 0) return {};
    const std::byte* from = static_cast<const std::byte*>(data_) + offset;
    if (const DeviceQueue* queue = queue_of(device_))
      return queue->download(device_.index, to, from, bytes);
    std::memcpy(to, from, bytes);
    return {};
  });
}

Status synchronize(const Device& device, void* stream) {
  return guarded([&]() -> Status {
    FOVEA_RETURN_IF_ERROR(check_device("synchronize", device));
    const DeviceQueue* queue = queue_of(device);
    return queue == nullptr ? Status() : queue->synchronize(device.index, stream);
  });
}

}  // namespace fovea
