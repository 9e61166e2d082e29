// cuda.sm80.backward in f32.
#include "cuda/sm80_backward_variants.h"

namespace fovea::cuda::FOVEA_WORLD {

BackwardVariant backward_f32(std::int64_t head_dim, bool masked, std::size_t shared_bytes) {
  return masked ? wide_backward<InF32, true>(head_dim, shared_bytes)
                : wide_backward<InF32, false>(head_dim, shared_bytes);
}

BackwardVariant mask_gradient_f32(std::int64_t head_dim, std::size_t shared_bytes) {
  return wide_mask_gradient<InF32>(head_dim, shared_bytes);
}

}  // namespace fovea::cuda::FOVEA_WORLD
