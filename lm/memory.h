// Memory of the whole process, as the operating system counts it.
#pragma once

#include <cstdint>

namespace fovea::lm {

/// Largest resident set so far, in bytes: VmHWM of /proc/self/status, else getrusage's ru_maxrss.
std::int64_t peak_resident_bytes();

/// Gives cached tensors and free heap back to the system and starts a new peak at the present
/// resident set. False where the system does not allow it: the peak then stays that of the process.
bool reset_peak_resident();

}  // namespace fovea::lm
