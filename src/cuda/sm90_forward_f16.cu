// cuda.sm90.forward in f16.
#include "cuda/sm90_forward_kernel.h"

namespace fovea::cuda::FOVEA_WORLD {

HopperForwardVariant hopper_forward_f16(std::int64_t head_dim, bool banded) {
  return hopper_forward_of<InF16>(head_dim, banded);
}

}  // namespace fovea::cuda::FOVEA_WORLD
