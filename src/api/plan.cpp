// Plan, forward() and backward(): the calls of the public API.
#include <fovea/plan.h>

#include "api/complete_args.h"
#include "api/guarded.h"
#include "api/plan_cache.h"
#include "core/plan_state.h"
#include "core/status_macros.h"
#include "core/stream_workspace.h"
#include "core/tuning_store.h"
#include "core/workspace_pool.h"

namespace fovea {
namespace {

template <class Args>
Status call(const Args& args, const CallOptions& options, Report* report) {
  return guarded([&]() -> Status {
    const CompleteArgs<Args> complete(args);
    FOVEA_RETURN_IF_ERROR(complete.status());
    auto plan = cached_plan(*complete, options);
    if (!plan.ok()) return plan.status();
    FOVEA_RETURN_IF_ERROR(run_plan(**plan, *complete, options.run));
    if (report != nullptr) *report = (*plan)->report;
    return {};
  });
}

template <class Args>
Status checked_run(const PlanState& plan, const Args& args, const RunOptions& options) {
  FOVEA_RETURN_IF_ERROR(check_fit(plan, args));
  return run_plan(plan, args, options);
}

}  // namespace

struct Plan::State {
  std::shared_ptr<const PlanState> plan;
};

Result<Plan> Plan::make(const ForwardArgs& args, const PlanOptions& options) {
  return guarded([&]() -> Result<Plan> {
    auto plan = make_plan(args, options);
    if (!plan.ok()) return plan.status();
    return Plan(std::make_shared<const State>(State{*plan}));
  });
}

Result<Plan> Plan::make(const BackwardArgs& args, const PlanOptions& options) {
  return guarded([&]() -> Result<Plan> {
    const CompleteArgs<BackwardArgs> complete(args);
    FOVEA_RETURN_IF_ERROR(complete.status());
    auto plan = make_plan(*complete, options);
    if (!plan.ok()) return plan.status();
    return Plan(std::make_shared<const State>(State{*plan}));
  });
}

Status Plan::run(const ForwardArgs& args, const RunOptions& options) const {
  return guarded([&] { return checked_run(*state_->plan, args, options); });
}

Status Plan::run(const BackwardArgs& args, const RunOptions& options) const {
  return guarded([&]() -> Status {
    const CompleteArgs<BackwardArgs> complete(args);
    FOVEA_RETURN_IF_ERROR(complete.status());
    return checked_run(*state_->plan, *complete, options);
  });
}

std::size_t Plan::workspace_bytes() const { return state_->plan->workspace_bytes; }
const Report& Plan::report() const { return state_->plan->report; }

Status forward(const ForwardArgs& args, const CallOptions& options, Report* report) {
  return call(args, options, report);
}

Status backward(const BackwardArgs& args, const CallOptions& options, Report* report) {
  return call(args, options, report);
}

void release_cached_memory() {
  clear_plan_cache();
  free_idle_workspaces();
  free_stream_workspaces();
  forget_tunings();
}

}  // namespace fovea
