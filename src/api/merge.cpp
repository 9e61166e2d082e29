#include <fovea/plan.h>

#include "api/guarded.h"
#include "core/devices.h"
#include "core/kernel_table.h"
#include "core/status_macros.h"
#include "core/validate_merge.h"

namespace fovea {

Status merge_partials(std::span<const PartialResult> parts, const TensorView& sinks,
                      const MutableTensorView& out, const MutableTensorView& lse,
                      const MergeOptions& options) {
  return guarded([&]() -> Status {
    const MergeProblem problem{parts, sinks, out, lse, options.stream};
    FOVEA_RETURN_IF_ERROR(validate_merge(problem));
    FOVEA_RETURN_IF_ERROR(check_device("merge", out.device));
    return find_backend(out.device.type)->merge(problem);
  });
}

}  // namespace fovea
