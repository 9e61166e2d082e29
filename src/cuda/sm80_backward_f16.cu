// cuda.sm80.backward in f16.
#include "cuda/sm80_backward_variants.h"

namespace fovea::cuda::FOVEA_WORLD {

BackwardVariant backward_f16(std::int64_t head_dim, bool masked, std::size_t shared_bytes) {
  return masked ? narrow_backward<InF16, true>(head_dim, shared_bytes)
                : narrow_backward<InF16, false>(head_dim, shared_bytes);
}

BackwardVariant mask_gradient_f16(std::int64_t head_dim, std::size_t shared_bytes) {
  return narrow_mask_gradient<InF16>(head_dim, shared_bytes);
}

}  // namespace fovea::cuda::FOVEA_WORLD
