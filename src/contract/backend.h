// Backend: what dispatch asks of a family of kernels besides the kernels themselves.
#pragma once

#include <span>
#include <vector>

#include <fovea/introspect.h>
#include <fovea/plan.h>

namespace fovea {

/// A validated merge: out [batch, heads, rows, dim], lse (may be absent) [batch, heads, rows].
struct MergeProblem {
  std::span<const PartialResult> parts;
  TensorView sinks;
  MutableTensorView out, lse;
};

struct Backend {
  DeviceType device;
  std::vector<DeviceInfo> (*devices)();
  /// CPU: how many workers to use unless the caller says otherwise. Others: null.
  int (*default_threads)();
  /// CPU: the library's pool seen as `threads` workers; lives as long as the process. Others: null.
  const ThreadPool& (*pool)(int threads);
  Status (*merge)(const MergeProblem& problem);
};

}  // namespace fovea
