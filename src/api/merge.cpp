#include <fovea/plan.h>

#include "api/guarded.h"
#include "core/kernel_table.h"
#include "core/status_macros.h"
#include "core/validate_merge.h"

namespace fovea {

Status merge_partials(std::span<const PartialResult> parts, const TensorView& sinks,
                      const MutableTensorView& out, const MutableTensorView& lse) {
  return guarded([&]() -> Status {
    const MergeProblem problem{parts, sinks, out, lse};
    FOVEA_RETURN_IF_ERROR(validate_merge(problem));
    const Backend* backend = find_backend(out.device.type);
    if (backend == nullptr)
      return {StatusCode::unsupported,
              std::string("[merge] no backend for ") + name_of(out.device.type)};
    return backend->merge(problem);
  });
}

}  // namespace fovea
