// Kernels that use each wrapper of what sm_90 has, and kernels with a defect each.
#pragma once

#include <string_view>

#include "cuda/launch.h"
#include "cuda/tensor_map.h"

namespace fovea::cuda {

struct Sm90TestArgs {
  TensorMap a, b, out;
  const void* words = nullptr;
  void* sums = nullptr;
  int count = 0;
};

/// The kernel of this name, or null.
FOVEA_CUDA_EXPORT(const Entry* sm90_test_kernel(std::string_view name));

}  // namespace fovea::cuda
