// The library's threads. Results of kernels never depend on how many there are.
#pragma once

#include <fovea/plan.h>

namespace fovea::cpu {

/// FOVEA_NUM_THREADS (read once), else the cores that affinity and the cgroup's quota leave us.
int default_threads();

/// The library's threads seen as `threads` workers, the caller being worker 0. Lives as long as the
/// process. A call that finds the threads busy runs its workers itself, one after the other, so
/// that concurrent callers never oversubscribe the machine.
const ThreadPool& shared_pool(int threads);

}  // namespace fovea::cpu
