// cuda.sm80.backward in f32: parts of all operands are made once a block, P and dS as they are
// stored.
#include "cuda/sm80_backward_variants.h"

namespace fovea::cuda::FOVEA_WORLD {
namespace {

template <int kDepth, int kKeys, int kRows, class Warps, bool kMasked>
using InParts = BackwardShape<InF32, kDepth, kKeys, kRows, Warps, 1, kMasked, false, true>;

template <bool kMasked>
BackwardVariant in_parts(std::int64_t head_dim, std::size_t shared_bytes) {
  using FourWarps = WarpGrid<4, 2, 2>;
  using EightWarps = WarpGrid<8, 4, 2>;
  if (head_dim <= 64)
    return first_that_fits<InParts<64, 64, 64, EightWarps, kMasked>,
                           InParts<64, 64, 32, EightWarps, kMasked>,
                           InParts<64, 32, 32, FourWarps, kMasked>>(shared_bytes);
  if (head_dim <= 128)
    return first_that_fits<InParts<128, 64, 32, EightWarps, kMasked>,
                           InParts<128, 32, 32, FourWarps, kMasked>>(shared_bytes);
  return {};
}

}  // namespace

BackwardVariant backward_f32(std::int64_t head_dim, bool masked, std::size_t shared_bytes) {
  const BackwardVariant best =
      masked ? in_parts<true>(head_dim, shared_bytes) : in_parts<false>(head_dim, shared_bytes);
  return best.entry.threads > 0 ? best : wide_backward<InF32>(head_dim, shared_bytes);
}

BackwardVariant mask_gradient_f32(std::int64_t head_dim, std::size_t shared_bytes) {
  return wide_mask_gradient<InF32>(head_dim, shared_bytes);
}

}  // namespace fovea::cuda::FOVEA_WORLD
