#include "cuda/prepare.h"

#include <algorithm>

#include "cuda/runtime.h"

namespace fovea::cuda {

std::size_t prepare_bytes(const RowSpace& space, bool wants_dsinks) {
  return wants_dsinks ? static_cast<std::size_t>(prepare_tasks(space)) * sizeof(double) : 0;
}

Status prepare(int device, const PrepareArgs& args, void* stream) {
  // One block at least: there may be nothing but zeros to write.
  const std::int64_t tasks = std::max<std::int64_t>(prepare_tasks(args.space), 1);
  const LaunchShape rows{blocks_for(tasks), kPrepareSharedBytes};
  const Entry& entry = *FOVEA_CUDA_PICK(prepare_entry)(args.out.width);
  if (Status status = launch(device, entry, rows, args, stream); !status.ok()) return status;
  if (args.dsinks == nullptr) return {};
  const LaunchShape heads{blocks_for(args.space.heads())};
  return launch(device, *FOVEA_CUDA_PICK(store_dsinks_entry)(), heads, args, stream);
}

}  // namespace fovea::cuda
