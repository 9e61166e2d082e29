// count_up: adds 1 to a number in device memory, by which replays of a graph are counted.
#pragma once

#include <cstdint>

#include <fovea/status.h>

#include "cuda/launch.h"

namespace fovea::cuda {

struct CountUpArgs {
  unsigned long long* count;
};

FOVEA_CUDA_EXPORT(const Entry* count_up_entry());

Status count_up(int device, std::uint64_t* count, void* stream);

}  // namespace fovea::cuda
