// cuda count_up: one thread adds 1 to a number. By an atomic operation, since a graph may be
// instantiated more than once and replayed on several streams.
#include "cuda/count_up.h"
#include "cuda/device/atomic.h"
#include "cuda/device/thread.h"

namespace fovea::cuda::FOVEA_WORLD {
namespace {

FOVEA_DEVICE void count_up(const CountUpArgs& args) {
  if (thread_index() == 0) atomic_add(args.count, 1ull);
}
FOVEA_CUDA_ENTRY(entry, CountUpArgs, 32, 1, count_up)

}  // namespace

const Entry* count_up_entry() { return &entry; }

}  // namespace fovea::cuda::FOVEA_WORLD
