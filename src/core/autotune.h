// Autotune: among the kernels that serve a call, the one that is measured to be fastest.
#pragma once

#include <fovea/report.h>

#include "contract/kernel.h"
#include "core/select.h"

namespace fovea {

/// Replaces what priority has chosen by what is fastest, measured now on memory of its own, or
/// before for a call of the same class. Kernels that were asked for by name stand, as does the
/// choice of priority where nothing could be measured; Tuning::note says why.
Tuning tune(const Problem& problem, const EffectiveChoice& choice, bool self_check,
            const ThreadPool& pool, Selection& selection);

/// The class of calls that one measured choice serves.
std::string tuning_class(const Problem& problem, const ThreadPool& pool,
                         const std::vector<const Kernel*>& kernels);

}  // namespace fovea
