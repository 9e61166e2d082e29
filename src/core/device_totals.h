// What kernels count themselves, in numbers that lie in the memory of their devices and are read
// with the counters, so that no run waits for them.
#pragma once

#include <cstdint>

#include "contract/backend.h"

namespace fovea {

/// The number of a device to which kernels add the tiles of masks that they skip. It is there for
/// as long as the process lives, as graphs may add to it.
Result<std::uint64_t*> mask_tiles_total(const DeviceQueue& queue, int device);

/// Takes what was added since the last look into the counters; waits for no stream.
void settle_device_totals();

}  // namespace fovea
