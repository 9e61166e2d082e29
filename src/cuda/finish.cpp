#include "cuda/finish.h"

#include <algorithm>
#include <iterator>

#include "cuda/runtime.h"

namespace fovea::cuda {

bool any_wanted(const WeightGradient (&weights)[plain::kMostSegments]) {
  return std::any_of(std::begin(weights), std::end(weights),
                     [](const WeightGradient& w) { return w.data != nullptr; });
}

std::size_t finish_bytes(const RowSpace& space, std::int64_t width) {
  return static_cast<std::size_t>(finish_shares(space) * plain::kMostSegments * width) *
         sizeof(float);
}

Status finish(int device, const FinishArgs& args, void* stream) {
  const bool weights = any_wanted(args.weights);
  LaunchShape rows{blocks_for(row_tile_tasks(args.space))};
  if (weights) {
    const int pieces = args.padded <= 256 ? 1 : 2;
    rows = {finish_shares(args.space),
            static_cast<std::size_t>(kFinishThreads * pieces * 8) * sizeof(float)};
  }
  const bool prologue = args.input.prologue.norm || args.input.prologue.rotate;
  const Entry& entry = *FOVEA_CUDA_PICK(finish_entry)(args.padded, prologue, weights);
  if (Status status = launch(device, entry, rows, args, stream); !status.ok() || !weights)
    return status;
  const std::int64_t columns = plain::kMostSegments * ceil_div(args.input.width, 32);
  const LaunchShape sums{columns, kFinishThreads * sizeof(double)};
  return launch(device, *FOVEA_CUDA_PICK(store_weights_entry)(), sums, args, stream);
}

}  // namespace fovea::cuda
