// cuda.sm90.forward in bf16.
#include "cuda/sm90_forward_kernel.h"

namespace fovea::cuda::FOVEA_WORLD {

HopperForwardVariant hopper_forward_bf16(std::int64_t head_dim, bool banded) {
  return hopper_forward_of<InBf16>(head_dim, banded);
}

}  // namespace fovea::cuda::FOVEA_WORLD
