// Parallel loops of the runtime. Work is cut into tasks by the shape alone, so that no result
// depends on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

#include <fovea/plan.h>

namespace fovea::lm {

/// Threads used by parallel loops and handed to attention kernels. 0 restores the default:
/// FOVEA_NUM_THREADS, else the cores this process may run on. Negative counts throw fovea::Error.
/// Not to be called while a loop runs.
void set_num_threads(int threads);
int num_threads();

/// The runtime's pool in the form attention plans take, so that both share their threads.
const ThreadPool& attention_thread_pool();

namespace detail {
void run_tasks(std::int64_t tasks, void (*call)(void* context, std::int64_t task), void* context);
}

/// Calls body(task) for every task in [0, tasks), on any thread, in any order; returns when all are
/// done. The first exception is rethrown. Nested or concurrent calls run in the calling thread.
template <class Body>
void parallel_tasks(std::int64_t tasks, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  detail::run_tasks(
      tasks, [](void* context, std::int64_t task) { (*static_cast<Plain*>(context))(task); },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

/// Calls body(begin, end) for consecutive ranges of at most `grain` that cover [0, count).
template <class Body>
void parallel_ranges(std::int64_t count, std::int64_t grain, Body&& body) {
  parallel_tasks((count + grain - 1) / grain, [&](std::int64_t task) {
    body(task * grain, std::min(count, (task + 1) * grain));
  });
}

}  // namespace fovea::lm
