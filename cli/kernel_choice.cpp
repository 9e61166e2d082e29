#include "cli/kernel_choice.h"

#include <fmt/format.h>
#include <fnmatch.h>

namespace fovea::cli {
namespace {

std::string list_of(const std::vector<KernelInfo>& all) {
  std::string ids;
  for (const KernelInfo& kernel : all)
    ids += fmt::format("{}{}", ids.empty() ? "" : ", ", kernel.id);
  return ids;
}

}  // namespace

Result<std::vector<KernelInfo>> kernels_matching(const std::vector<std::string>& patterns) {
  const std::vector<KernelInfo> all = kernels();
  if (patterns.empty()) return all;
  std::vector<bool> used(patterns.size());
  std::vector<KernelInfo> chosen;
  for (const KernelInfo& kernel : all) {
    bool wanted = false;
    for (std::size_t n = 0; n < patterns.size(); ++n) {
      if (::fnmatch(patterns[n].c_str(), kernel.id.c_str(), 0) != 0) continue;
      wanted = used[n] = true;
    }
    if (wanted) chosen.push_back(kernel);
  }
  for (std::size_t n = 0; n < patterns.size(); ++n) {
    if (used[n]) continue;
    return Status(StatusCode::invalid,
                  fmt::format("no kernel matches '{}'; there are {}", patterns[n], list_of(all)));
  }
  return chosen;
}

Result<KernelInfo> kernel_named(const std::string& name, const std::string& direction) {
  const std::vector<KernelInfo> all = kernels();
  for (const KernelInfo& kernel : all) {
    if (kernel.direction == direction &&
        (kernel.id == name || kernel.id == fmt::format("{}.{}", name, direction))) {
      return kernel;
    }
  }
  return Status(StatusCode::invalid, fmt::format("no {} kernel is called '{}'; there are {}",
                                                 direction, name, list_of(all)));
}

}  // namespace fovea::cli
