// Validation of merge_partials().
#pragma once

#include "contract/backend.h"

namespace fovea {

Status validate_merge(const MergeProblem& problem);

}  // namespace fovea
