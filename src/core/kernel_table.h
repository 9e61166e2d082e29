// The table of kernels and backends of this build, as src/registry.cpp composes it.
#pragma once

#include <span>
#include <string_view>

#include "contract/backend.h"
#include "contract/kernel.h"
#include "core/build_config.h"

namespace fovea {

/// Every kernel, best first within a device.
std::span<const Kernel* const> kernel_table();
std::span<const Backend* const> backend_table();
std::span<const build::Absent> absent_backend_table();

/// Row of a kernel in the table.
inline std::size_t index_of(const Kernel& kernel) {
  const auto table = kernel_table();
  for (std::size_t n = 0; n < table.size(); ++n)
    if (table[n] == &kernel) return n;
  return table.size();
}

/// The kernel with this id, or null.
inline const Kernel* find_kernel(std::string_view id) {
  for (const Kernel* kernel : kernel_table())
    if (id == kernel->id) return kernel;
  return nullptr;
}

/// The backend of a device type, or null.
inline const Backend* find_backend(DeviceType type) {
  for (const Backend* backend : backend_table())
    if (backend->device == type) return backend;
  return nullptr;
}

/// Bounds the arrays that are indexed by table row.
inline constexpr std::size_t kMaxKernels = 128;

}  // namespace fovea
