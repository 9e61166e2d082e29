#include "cuda/reference_rows.h"

#include "cuda/runtime.h"

namespace fovea::cuda {

Status load_rows(int device, const LoadRowsArgs& args, void* stream) {
  return launch(device, *FOVEA_CUDA_PICK(load_rows_entry)(),
                reference_blocks(lane_row_tasks(args.space)), args, stream);
}

Status give_back_rows(int device, const GiveBackRowsArgs& args, void* stream) {
  Status status = launch(device, *FOVEA_CUDA_PICK(give_back_rows_entry)(),
                         reference_blocks(lane_row_tasks(args.space)), args, stream);
  if (!status.ok() || args.terms == nullptr) return status;
  const std::int64_t elements = plain::kMostSegments * args.input.width;
  return launch(device, *FOVEA_CUDA_PICK(sum_weights_entry)(), reference_blocks(elements), args,
                stream);
}

}  // namespace fovea::cuda
