// cuda.sm90.backward in bf16.
#include "cuda/sm90_backward_kernel.h"

namespace fovea::cuda::FOVEA_WORLD {

HopperBackwardVariant hopper_backward_bf16(std::int64_t head_dim) {
  return hopper_backward_of<InBf16>(head_dim);
}

}  // namespace fovea::cuda::FOVEA_WORLD
