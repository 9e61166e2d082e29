// Merging partial attention results on the CPU.
#pragma once

#include "contract/backend.h"

namespace fovea::cpu {

/// lse = log sum_n exp lse_n [+ exp sink], out = sum_n exp(lse_n - lse) out_n, in f64 per row.
Status merge(const MergeProblem& problem);

}  // namespace fovea::cpu
