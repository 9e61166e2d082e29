// Validation of merge_partials().
#include "core/validate_merge.h"

#include "contract/format.h"
#include "core/memory.h"
#include "core/status_macros.h"

namespace fovea {
namespace {

template <class... Args>
Status invalid(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::invalid, "[merge] " + formatted(format, std::forward<Args>(args)...)};
}

Status check_one(const char* name, const TensorView& view, int rank, const Device& device) {
  if (!view.present()) return invalid("{} is missing", name);
  FOVEA_RETURN_IF_ERROR(check_layout("merge", name, view, rank, rank));
  if (!is_floating(view.dtype))
    return invalid("{} must be f32, f16, bf16 or f64; got {}", name, name_of(view.dtype));
  if (!(view.device == device)) return invalid("all tensors must be on one device");
  return check_pointer("merge", name, view);
}

Status check_lse(const char* name, const TensorView& lse, const TensorView& out) {
  FOVEA_RETURN_IF_ERROR(check_one(name, lse, 3, out.device));
  if (lse.dtype != DType::f32 && lse.dtype != DType::f64)
    return invalid("{} must be f32; got {}", name, name_of(lse.dtype));
  for (std::size_t d = 0; d < 3; ++d)
    if (lse.shape[d] != out.shape[d])
      return invalid("{} must have the first three dimensions of out {}; got {}", name,
                     shape_text(out), shape_text(lse));
  return {};
}

Status check_output(const char* name, const TensorView& output, const MergeProblem& p) {
  if (!writes_each_element_once(output))
    return invalid("{} would be written more than once in one place", name);
  for (const PartialResult& part : p.parts)
    if (overlap(output, part.out) || overlap(output, part.lse))
      return invalid("output {} overlaps a partial result", name);
  if (p.sinks.present() && overlap(output, p.sinks))
    return invalid("output {} overlaps sinks", name);
  return {};
}

}  // namespace

Status validate_merge(const MergeProblem& p) {
  FOVEA_RETURN_IF_ERROR(check_one("out", p.out, 4, p.out.device));
  for (const PartialResult& part : p.parts) {
    FOVEA_RETURN_IF_ERROR(check_one("partial out", part.out, 4, p.out.device));
    if (part.out.shape != p.out.shape)
      return invalid("partial out must have out's shape {}; got {}", shape_text(p.out),
                     shape_text(part.out));
    FOVEA_RETURN_IF_ERROR(check_lse("partial lse", part.lse, part.out));
  }
  if (p.lse.present()) FOVEA_RETURN_IF_ERROR(check_lse("lse", p.lse, p.out));
  if (p.sinks.present()) {
    FOVEA_RETURN_IF_ERROR(check_one("sinks", p.sinks, 1, p.out.device));
    if (p.sinks.shape[0] != p.out.shape[1])
      return invalid("sinks must have shape [{}]; got {}", p.out.shape[1], shape_text(p.sinks));
  }
  FOVEA_RETURN_IF_ERROR(check_output("out", p.out, p));
  if (p.lse.present()) {
    FOVEA_RETURN_IF_ERROR(check_output("lse", p.lse, p));
    if (overlap(p.lse, p.out)) return invalid("output lse overlaps out");
  }
  return {};
}

}  // namespace fovea
