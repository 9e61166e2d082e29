// Kernels that use each device wrapper once, and kernels with a defect each.
#pragma once

#include <string_view>

#include "contract/plain_call.h"
#include "cuda/launch.h"

namespace fovea::cuda {

struct DeviceTestArgs {
  const void* a = nullptr;
  const void* b = nullptr;
  void* out = nullptr;
  std::int64_t count = 0;
  plain::Element element = plain::Element::f32;
};

/// The kernel of this name, or null.
FOVEA_CUDA_EXPORT(const Entry* device_test_kernel(std::string_view name));

}  // namespace fovea::cuda
