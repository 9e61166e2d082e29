// cuda.sm80.forward in tf32.
#include "cuda/sm80_forward_variants.h"

namespace fovea::cuda::FOVEA_WORLD {

ForwardVariant forward_tf32(std::int64_t head_dim, bool few, bool, std::size_t shared_bytes) {
  return few ? wide_decode<InTf32>(head_dim, shared_bytes)
             : wide_forward<InTf32>(head_dim, shared_bytes);
}

}  // namespace fovea::cuda::FOVEA_WORLD
