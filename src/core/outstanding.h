// Outstanding runs: queued on a device, and not yet seen to have finished.
#pragma once

#include <cstdint>
#include <memory>

#include "core/plan_state.h"

namespace fovea {

/// A run that was queued. It keeps alive all that is said about it when it has finished.
struct QueuedRun {
  std::shared_ptr<const PlanState> plan;
  std::shared_ptr<detail::JobState> job;
  std::uint64_t epoch = 0;  ///< of the counters when it was launched
};

/// Remembers a run whose work is the last on the stream, with a mark behind it.
Status follow(QueuedRun run, void* stream);

/// Settles the runs that have finished by now; waits for none.
void settle_finished_runs();

/// The same, unless a millisecond has not passed since the last time: for every run to call.
void settle_finished_runs_now_and_then();

}  // namespace fovea
