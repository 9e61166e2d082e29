// cuda.sm80.backward in tf32.
#include "cuda/sm80_backward_variants.h"

namespace fovea::cuda::FOVEA_WORLD {

BackwardVariant backward_tf32(std::int64_t head_dim, bool, std::size_t shared_bytes) {
  return wide_backward<InTf32>(head_dim, shared_bytes);
}

BackwardVariant mask_gradient_tf32(std::int64_t head_dim, std::size_t shared_bytes) {
  return wide_mask_gradient<InTf32>(head_dim, shared_bytes);
}

}  // namespace fovea::cuda::FOVEA_WORLD
