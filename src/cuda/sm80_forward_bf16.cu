// cuda.sm80.forward in bf16.
#include "cuda/sm80_forward_variants.h"

namespace fovea::cuda::FOVEA_WORLD {

ForwardVariant forward_bf16(std::int64_t head_dim, bool few, bool masked,
                            std::size_t shared_bytes) {
  return masked ? narrow_forward<InBf16, true>(head_dim, few, shared_bytes)
                : narrow_forward<InBf16, false>(head_dim, few, shared_bytes);
}

}  // namespace fovea::cuda::FOVEA_WORLD
