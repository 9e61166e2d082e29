// Kernels named on a command line.
#pragma once

#include <string>
#include <vector>

#include <fovea/introspect.h>
#include <fovea/status.h>

namespace fovea::cli {

/// Kernels whose id matches one of the shell patterns, best first; all kernels without patterns. A
/// pattern that matches none is an error that lists what there is.
Result<std::vector<KernelInfo>> kernels_matching(const std::vector<std::string>& patterns);

/// The kernel "cpu.avx512.forward" named in full or without its direction.
Result<KernelInfo> kernel_named(const std::string& name, const std::string& direction);

}  // namespace fovea::cli
