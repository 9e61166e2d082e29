// cuda.sm80.backward in bf16.
#include "cuda/sm80_backward_variants.h"

namespace fovea::cuda::FOVEA_WORLD {

BackwardVariant backward_bf16(std::int64_t head_dim, bool masked, std::size_t shared_bytes) {
  return masked ? narrow_backward<InBf16, true>(head_dim, shared_bytes)
                : narrow_backward<InBf16, false>(head_dim, shared_bytes);
}

BackwardVariant mask_gradient_bf16(std::int64_t head_dim, std::size_t shared_bytes) {
  return narrow_mask_gradient<InBf16>(head_dim, shared_bytes);
}

}  // namespace fovea::cuda::FOVEA_WORLD
