// Self-check: before an instantiation first serves, it must agree with the oracle on a small case.
#pragma once

#include <string>

#include <fovea/introspect.h>

#include "contract/kernel.h"

namespace fovea {

/// Checks `kernel` for the class of `problem` (compute dtype, head-dim bucket, features) unless
/// that was done before in this process. Failures disable the instantiation: self_check_failed with
/// the measured error. Accepted unchecked: kernels that serve only by name (the oracle is one),
/// those of a direction without an oracle, problems that the oracle refuses or that have no batch.
/// The oracle is the CPU's for kernels of every device; each device is checked on its own.
Refusal check_instantiation(const Kernel& kernel, const Problem& problem);

struct SelfCheckState {
  SelfCheck state = SelfCheck::not_run;
  std::string detail;
};
/// What has been checked of a kernel so far.
SelfCheckState self_check_state(const Kernel& kernel);

}  // namespace fovea
