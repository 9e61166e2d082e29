// Device memory for programs that have no framework to allocate it. Works for every device; on the
// CPU it is ordinary memory.
#pragma once

#include <cstddef>
#include <utility>

#include <fovea/export.h>
#include <fovea/status.h>
#include <fovea/tensor.h>

namespace fovea {

/// Owns memory of a device, which begins at a multiple of 64 bytes.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Not initialised. May wait for the device, as freeing does.
  FOVEA_API static Result<DeviceBuffer> make(const Device& device, std::size_t bytes);
  FOVEA_API ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    swap(other);
    return *this;
  }

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] const Device& device() const { return device_; }

  /// Copies between host memory and [offset, offset + bytes) of the buffer, and returns when that
  /// is done. Work on a stream is not waited for: see synchronize().
  FOVEA_API Status upload(const void* from, std::size_t bytes, std::size_t offset = 0);
  FOVEA_API Status download(void* to, std::size_t bytes, std::size_t offset = 0) const;

 private:
  void swap(DeviceBuffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  Device device_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Waits for all that was queued on a stream of the device (null: its default stream), and reports
/// it if that has failed. Nothing to do on the CPU.
FOVEA_API Status synchronize(const Device& device, void* stream = nullptr);

}  // namespace fovea
