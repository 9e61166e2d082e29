// What each kernel serves, as a page.
#pragma once

#include <string>

#include <fovea/status.h>

namespace fovea::cli {

/// Markdown, made by asking each kernel about a call for each feature. Instruction sets and devices
/// of this machine have no say, except that CUDA kernels are asked on the emulated device, which
/// the build must have.
Result<std::string> support_matrix();

}  // namespace fovea::cli
