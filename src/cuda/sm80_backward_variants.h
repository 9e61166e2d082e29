// The tiles of cuda.sm80.backward for one compute mode: each sm80_backward_<mode>.cu is this table.
// What keeps instantiations few: sm80_forward_variants.h.
#pragma once

#include "cuda/sm80_dmask_kernel.h"

namespace fovea::cuda::FOVEA_WORLD {

template <class S>
FOVEA_DEVICE void backward(const BackwardArgs& args) {
  BackwardTask<S> task(args);
  for (std::int64_t n = block_index(); n < args.tasks; n += grid_blocks()) task.run(n);
}

template <class S>
BackwardVariant backward_variant_of() {
  Entry entry{};
  if constexpr (S::kForMask)
    entry = entry_of<MaskGradientArgs, S::kThreads, 1, mask_gradient<S>>("sm80_mask_gradient");
  else
    entry = entry_of<BackwardArgs, S::kThreads, 1, backward<S>>("sm80_backward");
  return {entry,
          {S::kKeys, S::kRows, S::kColumns, S::kWarps,
           static_cast<std::size_t>(BackwardTask<S>::kBytes)}};
}

template <class... S>
BackwardVariant first_that_fits(std::size_t shared_bytes) {
  return cuda::first_that_fits<BackwardTile>(shared_bytes, {backward_variant_of<S>()...});
}

/// 16-bit modes.
template <class Mode, bool kMasked>
BackwardVariant narrow_backward(std::int64_t head_dim, std::size_t shared_bytes) {
  if (head_dim <= 64)
    return first_that_fits<BackwardShape<Mode, 64, 128, 64, 8, 2, kMasked>>(shared_bytes);
  if (head_dim <= 128)
    return first_that_fits<BackwardShape<Mode, 128, 128, 64, 8, 2, kMasked>,
                           BackwardShape<Mode, 128, 64, 64, 4, 1, kMasked>>(shared_bytes);
  if (head_dim <= 256)
    return first_that_fits<BackwardShape<Mode, 256, 64, 64, 4, 1, true>,
                           BackwardShape<Mode, 256, 32, 32, 2, 1, true>>(shared_bytes);
  return first_that_fits<BackwardShape<Mode, 512, 32, 32, 2, 1, true>,
                         BackwardShape<Mode, 512, 16, 16, 1, 1, true>>(shared_bytes);
}

/// f32 and tf32. The last needs 133 KB: a device with less has no variant.
template <class Mode, bool kMasked>
BackwardVariant wide_backward(std::int64_t head_dim, std::size_t shared_bytes) {
  if (head_dim <= 64)
    return first_that_fits<BackwardShape<Mode, 64, 64, 64, 4, 1, kMasked>>(shared_bytes);
  if (head_dim <= 128)
    return first_that_fits<BackwardShape<Mode, 128, 32, 32, 2, 1, kMasked>>(shared_bytes);
  if (head_dim <= 256)
    return first_that_fits<BackwardShape<Mode, 256, 32, 32, 2, 1, true>,
                           BackwardShape<Mode, 256, 16, 16, 1, 1, true>>(shared_bytes);
  return first_that_fits<BackwardShape<Mode, 512, 16, 16, 1, 1, true>>(shared_bytes);
}

/// The mask's gradient: small tiles, which fit everywhere but for f32 above 256.
template <class Mode>
BackwardVariant narrow_mask_gradient(std::int64_t head_dim, std::size_t shared_bytes) {
  if (head_dim <= 128)
    return first_that_fits<BackwardShape<Mode, 128, 64, 64, 4, 1, true, true>>(shared_bytes);
  return first_that_fits<BackwardShape<Mode, 512, 16, 16, 1, 1, true, true>>(shared_bytes);
}
template <class Mode>
BackwardVariant wide_mask_gradient(std::int64_t head_dim, std::size_t shared_bytes) {
  if (head_dim <= 128)
    return first_that_fits<BackwardShape<Mode, 128, 32, 32, 2, 1, true, true>>(shared_bytes);
  return first_that_fits<BackwardShape<Mode, 512, 16, 16, 1, 1, true, true>>(shared_bytes);
}

}  // namespace fovea::cuda::FOVEA_WORLD
