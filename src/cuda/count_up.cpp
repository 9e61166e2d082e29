#include "cuda/count_up.h"

#include "cuda/runtime.h"

namespace fovea::cuda {

Status count_up(int device, std::uint64_t* count, void* stream) {
  const CountUpArgs args{reinterpret_cast<unsigned long long*>(count)};
  return launch(device, *FOVEA_CUDA_PICK(count_up_entry)(), {1}, args, stream);
}

}  // namespace fovea::cuda
