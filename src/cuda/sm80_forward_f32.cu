// cuda.sm80.forward in f32.
#include "cuda/sm80_forward_variants.h"

namespace fovea::cuda::FOVEA_WORLD {

ForwardVariant forward_f32(std::int64_t head_dim, bool few, bool masked, std::size_t shared_bytes) {
  return masked ? wide_forward<InF32, true>(head_dim, few, shared_bytes)
                : wide_forward<InF32, false>(head_dim, few, shared_bytes);
}

}  // namespace fovea::cuda::FOVEA_WORLD
