// Providers of others: what is counted of them.
#pragma once

#include <vector>

#include <fovea/report.h>

namespace fovea {

/// Those that were ever tried.
std::vector<KernelCount> provider_counts();
void reset_provider_counts();

}  // namespace fovea
