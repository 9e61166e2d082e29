// The tiles of cuda.sm80.backward for one compute mode: each sm80_backward_<mode>.cu is this table.
// What keeps instantiations few: sm80_forward_variants.h.
#pragma once

#include "cuda/sm80_backward_kernel.h"
#include "cuda/sm80_dmask_kernel.h"

namespace fovea::cuda::FOVEA_WORLD {

template <class S>
FOVEA_DEVICE void backward(const BackwardArgs& args) {
  BackwardTask<S> task(args);
  // A grid has a block for each task but for more than 2^31 of them; a round costs one register.
  for (int round = 0; round * grid_blocks() + block_index() < args.tasks; ++round)
    task.run(round * grid_blocks() + block_index());
}

template <class S>
BackwardVariant backward_variant_of() {
  Entry entry{};
  int shared_bytes;
  if constexpr (S::kForMask) {
    entry = entry_of<MaskGradientArgs, S::kThreads, 1, mask_gradient<S>>("sm80_mask_gradient");
    shared_bytes = MaskGradientTask<S>::kBytes;
  } else {
    entry = entry_of<BackwardArgs, S::kThreads, 1, backward<S>>("sm80_backward");
    shared_bytes = BackwardTask<S>::kBytes;
  }
  return {entry,
          {S::kKeys, S::kRows, S::kColumns, S::kWarps, static_cast<std::size_t>(shared_bytes)}};
}

template <class... S>
BackwardVariant first_that_fits(std::size_t shared_bytes) {
  return cuda::first_that_fits<BackwardTile>(shared_bytes, {backward_variant_of<S>()...});
}

/// 16-bit modes. Under masks a query more costs too many registers for tiles of 128 of them.
template <class Mode, bool kMasked>
BackwardVariant narrow_backward(std::int64_t head_dim, std::size_t shared_bytes) {
  using OneWarp = WarpGrid<1, 1, 1>;
  using TwoWarps = WarpGrid<2, 1, 1>;
  using FourWarps = WarpGrid<4, 2, 2>;
  if (head_dim <= 64)
    return first_that_fits<BackwardShape<Mode, 64, 128, kMasked ? 64 : 128,
                                         WarpGrid<8, 4, kMasked ? 2 : 4>, 2, kMasked>,
                           BackwardShape<Mode, 64, 128, 64, WarpGrid<8, 4, 2>, 1, kMasked>>(
        shared_bytes);
  if (head_dim <= 128)
    return first_that_fits<BackwardShape<Mode, 128, 128, 64, WarpGrid<8, 4, 2>, 2, kMasked>,
                           BackwardShape<Mode, 128, 128, 64, WarpGrid<8, 4, 2>, 1, kMasked>,
                           BackwardShape<Mode, 128, 64, 64, FourWarps, 1, kMasked>>(shared_bytes);
  if (head_dim <= 256)
    return first_that_fits<
        BackwardShape<Mode, 256, 64, 64, WarpGrid<kMasked ? 4 : 8, kMasked ? 2 : 4, 2>, 1, kMasked>,
        BackwardShape<Mode, 256, 32, 32, TwoWarps, 1, true>>(shared_bytes);
  return first_that_fits<BackwardShape<Mode, 512, 32, 32, TwoWarps, 1, true>,
                         BackwardShape<Mode, 512, 16, 16, OneWarp, 1, true>>(shared_bytes);
}

/// tf32, and f32 where its parts have no room or, few warps, no use. The last needs 133 KB: a
/// device with less has no variant.
template <class Mode>
BackwardVariant wide_backward(std::int64_t head_dim, std::size_t shared_bytes) {
  using OneWarp = WarpGrid<1, 1, 1>;
  using TwoWarps = WarpGrid<2, 1, 1>;
  using FourWarps = WarpGrid<4, 2, 2>;
  if (head_dim <= 64)
    return first_that_fits<BackwardShape<Mode, 64, 64, 64, FourWarps, 1, true>,
                           BackwardShape<Mode, 64, 64, 32, FourWarps, 1, true>>(shared_bytes);
  if (head_dim <= 128)
    return first_that_fits<BackwardShape<Mode, 128, 64, 32, WarpGrid<8, 4, 2>, 1, true>,
                           BackwardShape<Mode, 128, 32, 32, TwoWarps, 1, true>>(shared_bytes);
  if (head_dim <= 256)
    return first_that_fits<BackwardShape<Mode, 256, 32, 32, TwoWarps, 1, true>,
                           BackwardShape<Mode, 256, 16, 16, OneWarp, 1, true>>(shared_bytes);
  return first_that_fits<BackwardShape<Mode, 512, 16, 16, OneWarp, 1, true>>(shared_bytes);
}

/// The mask's gradient: small tiles, which fit everywhere but for f32 above 256. A warp owns all
/// queries of its keys.
template <class Mode>
BackwardVariant narrow_mask_gradient(std::int64_t head_dim, std::size_t shared_bytes) {
  if (head_dim <= 128)
    return first_that_fits<BackwardShape<Mode, 128, 64, 64, WarpGrid<4, 4, 4>, 1, true, true>>(
        shared_bytes);
  return first_that_fits<BackwardShape<Mode, 512, 16, 16, WarpGrid<1, 1, 1>, 1, true, true>>(
      shared_bytes);
}
template <class Mode>
BackwardVariant wide_mask_gradient(std::int64_t head_dim, std::size_t shared_bytes) {
  if (head_dim <= 128)
    return first_that_fits<BackwardShape<Mode, 128, 32, 32, WarpGrid<2, 2, 2>, 1, true, true>>(
        shared_bytes);
  return first_that_fits<BackwardShape<Mode, 512, 16, 16, WarpGrid<1, 1, 1>, 1, true, true>>(
      shared_bytes);
}

}  // namespace fovea::cuda::FOVEA_WORLD
