// PlanState: a validated call, its kernel and all that running it needs, made once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <fovea/plan.h>

#include "contract/backend.h"
#include "contract/kernel.h"
#include "core/counters.h"
#include "core/proof.h"
#include "core/validate.h"

namespace fovea {

/// Immutable once made, so that runs may be concurrent.
struct PlanState : std::enable_shared_from_this<PlanState> {
  Structure structure;  ///< as planned; runs are compared with it
  Problem problem;
  const Kernel* kernel = nullptr;
  const DeviceQueue* queue = nullptr;  ///< of the device, if it works through streams
  std::size_t workspace_bytes = 0;
  std::uint64_t* mask_tiles_skipped = nullptr;  ///< in the device's memory; without a mask null
  ThreadPool pool;                              ///< CPU: a copy of the caller's, or the library's
  Report report;

  proof::Subject subject;  ///< of `kernel`
  bool has_preferred = false;
  proof::Subject preferred;  ///< the kernel that should have served, when another one does
  std::string preferred_reason;
  std::vector<counting::Counter*> refusals;  ///< one for every kernel passed over
};

/// Validates, selects (with self-check) and sizes.
Result<std::shared_ptr<const PlanState>> make_plan(const ForwardArgs& args,
                                                   const PlanOptions& options);
Result<std::shared_ptr<const PlanState>> make_plan(const BackwardArgs& args,
                                                   const PlanOptions& options);

/// Whether the arguments are such as the plan was made for.
Status check_fit(const PlanState& plan, const ForwardArgs& args);
Status check_fit(const PlanState& plan, const BackwardArgs& args);

/// Runs the plan's kernel on arguments that fit it, counts and proves; on a device with streams,
/// completion is counted and proved when it is seen (see outstanding.h).
Status run_plan(const PlanState& plan, const ForwardArgs& args, const RunOptions& options);
Status run_plan(const PlanState& plan, const BackwardArgs& args, const RunOptions& options);

/// Counts and proves what became of a run. `epoch`: of the counters when it was launched.
void settle(const PlanState& plan, detail::JobState& job, std::uint64_t epoch,
            const Status& status);
/// The same of replays of a run that a graph has recorded.
void settle_replay(const PlanState& plan, detail::JobState& job, std::uint64_t replays);

}  // namespace fovea
