// Devices as dispatch sees them: whether one can be used, its name, its queue.
#pragma once

#include <cstddef>
#include <string>

#include <fovea/status.h>
#include <fovea/tensor.h>

#include "contract/backend.h"

namespace fovea {

/// "NVIDIA H200"; the type's name when there is no such device.
std::string device_name(const Device& device);

/// Whether the device is there; `where` names the call in the message.
Status check_device(const char* where, const Device& device);

/// How to reach a device that works through streams; null for one that does not.
const DeviceQueue* queue_of(const Device& device);

/// Whether plans may be made for a call that will run on this stream: not while it records a graph,
/// since a kernel's self-check waits for the device.
Status check_may_plan(const char* where, const Device& device, void* stream);

/// Memory of a device, all zeros. The caller frees it, or keeps it for the process's life.
Result<void*> zeroed_memory(const DeviceQueue& queue, int device, std::size_t bytes);

/// Eight zero bytes in the device's memory, for the process's life: zero in every dtype. The host's
/// for a device that cannot be used, which planning then refuses.
Result<const void*> zero_on(const Device& device);

}  // namespace fovea
