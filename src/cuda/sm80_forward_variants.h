// The tiles of cuda.sm80.forward for one compute mode: each sm80_forward_<mode>.cu is this table.
//
// Instantiations are few: a head dim takes the next larger of 64, 128, 256, 512; whatever bends or
// hides scores beyond bands and lengths is one variant; tf32 has that one alone.
#pragma once

#include "cuda/sm80_forward_kernel.h"

namespace fovea::cuda::FOVEA_WORLD {

template <class S>
FOVEA_DEVICE void forward(const ForwardArgs& args) {
  ForwardTask<S> task(args);
  // A grid has a block for each task but for more than 2^31 of them; a round costs one register.
  for (int round = 0; round * grid_blocks() + block_index() < args.tasks; ++round)
    task.run(round * grid_blocks() + block_index());
}

template <class S>
ForwardVariant forward_variant_of() {
  return {entry_of<ForwardArgs, S::kThreads, S::kBlocks, forward<S>>("sm80_forward"),
          {S::kRows, S::kKeys, S::kValues, S::kWarps,
           static_cast<std::size_t>(ForwardTask<S>::kBytes)}};
}

template <class... S>
ForwardVariant first_that_fits(std::size_t shared_bytes) {
  return cuda::first_that_fits<ForwardTile>(shared_bytes, {forward_variant_of<S>()...});
}

/// 16-bit modes.
template <class Mode, bool kMasked>
ForwardVariant narrow_forward(std::int64_t head_dim, bool few, std::size_t shared_bytes) {
  constexpr int kWarps = kMasked ? 8 : 4;  // masked: half the rows a warp, for registers
  if (few) {
    if (head_dim <= 64)
      return first_that_fits<ForwardShape<Mode, 64, 16, 64, 1, kMasked, true>>(shared_bytes);
    if (head_dim <= 128)
      return first_that_fits<ForwardShape<Mode, 128, 16, 64, 1, kMasked, true>>(shared_bytes);
    if (head_dim <= 256)
      return first_that_fits<ForwardShape<Mode, 256, 16, 32, 1, kMasked, true>>(shared_bytes);
    return first_that_fits<ForwardShape<Mode, 512, 16, 32, 1, true, true>>(shared_bytes);
  }
  if (head_dim <= 64)
    return first_that_fits<ForwardShape<Mode, 64, 128, 64, kWarps, kMasked, false>>(shared_bytes);
  if (head_dim <= 128)
    return first_that_fits<ForwardShape<Mode, 128, 128, kMasked ? 64 : 32, kWarps, kMasked, false>>(
        shared_bytes);
  if (head_dim <= 256)
    return first_that_fits<ForwardShape<Mode, 256, 128, 64, 8, kMasked, false>,
                           ForwardShape<Mode, 256, 64, 32, 4, kMasked, false>>(shared_bytes);
  return first_that_fits<ForwardShape<Mode, 512, 32, 32, 2, true, false>>(shared_bytes);
}

/// f32 and tf32, few rows: one warp, which takes f32 apart for itself.
template <class Mode>
ForwardVariant wide_decode(std::int64_t head_dim, std::size_t shared_bytes) {
  if (head_dim <= 64)
    return first_that_fits<ForwardShape<Mode, 64, 16, 64, 1, true, true>>(shared_bytes);
  if (head_dim <= 128)
    return first_that_fits<ForwardShape<Mode, 128, 16, 32, 1, true, true>>(shared_bytes);
  if (head_dim <= 256)
    return first_that_fits<ForwardShape<Mode, 256, 16, 16, 1, true, true>>(shared_bytes);
  return first_that_fits<ForwardShape<Mode, 512, 16, 16, 1, true, true>>(shared_bytes);
}

/// tf32, and f32 where its parts have no room or, one warp, no use.
template <class Mode>
ForwardVariant wide_forward(std::int64_t head_dim, std::size_t shared_bytes) {
  if (head_dim <= 64)
    return first_that_fits<ForwardShape<Mode, 64, 64, 32, 4, true, false>>(shared_bytes);
  if (head_dim <= 128)
    return first_that_fits<ForwardShape<Mode, 128, 64, 32, 4, true, false>>(shared_bytes);
  if (head_dim <= 256)
    return first_that_fits<ForwardShape<Mode, 256, 64, 16, 4, true, false>>(shared_bytes);
  return first_that_fits<ForwardShape<Mode, 512, 16, 16, 1, true, false>>(shared_bytes);
}

}  // namespace fovea::cuda::FOVEA_WORLD
