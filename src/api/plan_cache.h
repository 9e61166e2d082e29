// Plans of recent calls, so that forward() and backward() validate and select once.
#pragma once

#include <fovea/plan.h>

#include "core/plan_state.h"

namespace fovea {

/// The plan for these arguments and options, made now unless it was made before, for a run on the
/// options' stream.
Result<std::shared_ptr<const PlanState>> cached_plan(const ForwardArgs& args,
                                                     const CallOptions& options);
Result<std::shared_ptr<const PlanState>> cached_plan(const BackwardArgs& args,
                                                     const CallOptions& options);

void clear_plan_cache();

}  // namespace fovea
