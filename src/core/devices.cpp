#include "core/devices.h"

#include <map>
#include <mutex>
#include <vector>

#include "contract/format.h"
#include "core/kernel_table.h"
#include "core/status_macros.h"

namespace fovea {
namespace {

/// Why a device cannot be used; empty when it can.
std::string trouble_with(const Device& device) {
  const Backend* backend = find_backend(device.type);
  if (backend == nullptr) {
    for (const build::Absent& absent : absent_backend_table())
      if (std::string_view(absent.backend) == name_of(device.type)) return absent.reason;
    return "no such backend in this build";
  }
  const std::vector<DeviceInfo> all = backend->devices();
  for (const DeviceInfo& info : all)
    if (info.device == device) return {};
  if (all.empty() && backend->unavailable != nullptr) return backend->unavailable();
  return formatted("there {} {} {} device{}", all.size() == 1 ? "is" : "are", all.size(),
                   name_of(device.type), all.size() == 1 ? "" : "s");
}

}  // namespace

std::string device_name(const Device& device) {
  if (const Backend* backend = find_backend(device.type))
    for (const DeviceInfo& info : backend->devices())
      if (info.device == device) return info.name;
  return name_of(device.type);
}

Status check_device(const char* where, const Device& device) {
  const std::string trouble = trouble_with(device);
  if (trouble.empty()) return {};
  return {StatusCode::unsupported, formatted("[{}] device {}:{} cannot be used: {}", where,
                                             name_of(device.type), device.index, trouble)};
}

const DeviceQueue* queue_of(const Device& device) {
  const Backend* backend = find_backend(device.type);
  return backend == nullptr ? nullptr : backend->queue;
}

Status check_may_plan(const char* where, const Device& device, void* stream) {
  const DeviceQueue* queue = queue_of(device);
  if (queue == nullptr || !check_device(where, device).ok()) return {};
  const Result<bool> capturing = queue->capturing(device.index, stream);
  if (!capturing.ok()) return capturing.status();
  if (!*capturing) return {};
  return {StatusCode::invalid,
          formatted("[{}] plans are made before capture: make a Plan, or call once, before the "
                    "stream records a graph",
                    where)};
}

Result<void*> zeroed_memory(const DeviceQueue& queue, int device, std::size_t bytes) {
  const Result<void*> memory = queue.allocate(device, bytes);
  if (!memory.ok()) return memory.status();
  const std::vector<std::byte> zeros(bytes);
  if (Status status = queue.upload(device, *memory, zeros.data(), bytes); !status.ok()) {
    queue.free(device, *memory);
    return status;
  }
  return *memory;
}

Result<const void*> zero_on(const Device& device) {
  static constexpr double kZero = 0;
  const DeviceQueue* queue = queue_of(device);
  if (queue == nullptr) return &kZero;
  static std::mutex mutex;
  static auto* zeros = new std::map<std::pair<const DeviceQueue*, int>, const void*>;
  const std::lock_guard lock(mutex);
  if (const auto made = zeros->find({queue, device.index}); made != zeros->end())
    return made->second;
  if (!check_device("zero", device).ok()) return &kZero;
  const Result<void*> memory = zeroed_memory(*queue, device.index, sizeof(kZero));
  if (!memory.ok()) return memory.status();
  return zeros->emplace(std::pair(queue, device.index), *memory).first->second;
}

}  // namespace fovea
