// cuda.sm80.forward in f32: parts of K and V are made once a block, so that a block has many rows.
#include "cuda/sm80_forward_variants.h"

namespace fovea::cuda::FOVEA_WORLD {
namespace {

template <int kDepth, int kRows, int kKeys, int kWarps, bool kMasked, int kBlocks = 1>
using InParts = ForwardShape<InF32, kDepth, kRows, kKeys, kWarps, kMasked, false, kBlocks, true>;

}  // namespace

ForwardVariant forward_f32(std::int64_t head_dim, bool few, bool masked, std::size_t shared_bytes) {
  if (few) return wide_decode<InF32>(head_dim, shared_bytes);
  ForwardVariant best{};
  if (head_dim <= 64)
    best = masked ? first_that_fits<InParts<64, 64, 32, 4, true, 2>>(shared_bytes)
                  : first_that_fits<InParts<64, 64, 32, 4, false, 3>>(shared_bytes);
  else if (head_dim <= 128)
    best = masked ? first_that_fits<InParts<128, 128, 32, 8, true>, InParts<128, 64, 32, 4, true>>(
                        shared_bytes)
                  : first_that_fits<InParts<128, 128, 32, 8, false>>(shared_bytes);
  else if (head_dim <= 256)
    best = first_that_fits<InParts<256, 64, 16, 4, true>>(shared_bytes);
  return best.entry.threads > 0 ? best : wide_forward<InF32>(head_dim, shared_bytes);
}

}  // namespace fovea::cuda::FOVEA_WORLD
