// The device that the tests of this program run on.
#pragma once

#include <cstdlib>

#include <fovea/tensor.h>

namespace fovea {

/// Set before anybody asks the library for its devices.
inline const bool asked_for_emulation = ::setenv("FOVEA_CUDA_EMULATE", "1", 1) == 0;
inline constexpr Device kEmulated{DeviceType::cuda, 0};

}  // namespace fovea
