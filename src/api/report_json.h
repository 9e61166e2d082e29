// Reports as JSON.
#pragma once

#include <string>
#include <vector>

#include <fovea/report.h>

namespace fovea {

std::string json_of(const std::vector<TunedKernel>& kernels);
std::string json_of(const Report& report);

}  // namespace fovea
