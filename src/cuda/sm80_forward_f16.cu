// cuda.sm80.forward in f16.
#include "cuda/sm80_forward_variants.h"

namespace fovea::cuda::FOVEA_WORLD {

ForwardVariant forward_f16(std::int64_t head_dim, bool few, bool masked, std::size_t shared_bytes) {
  return masked ? narrow_forward<InF16, true>(head_dim, few, shared_bytes)
                : narrow_forward<InF16, false>(head_dim, few, shared_bytes);
}

}  // namespace fovea::cuda::FOVEA_WORLD
