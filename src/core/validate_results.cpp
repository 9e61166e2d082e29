// Validation of what a call writes, and of what backward is given besides the operands.
#include "core/memory.h"
#include "core/status_macros.h"
#include "core/validate_parts.h"

namespace fovea::validation {
namespace {

/// Forward-shaped results are [batch, q_heads, q_len, dim], or [total_q, q_heads, dim] when packed,
/// in segments along q_len.
template <class Operands>
Status check_out(Context& c, const char* name, const Operands& operand) {
  Problem& p = c.problem;
  const bool packed = p.features.has(Feature::varlen);
  if (operand.count > kMaxSegments || (packed && operand.count > 1))
    return c.invalid("{} must have 1 to {} segments; got {}", name, packed ? 1 : kMaxSegments,
                     operand.count);
  std::int64_t rows = 0;
  for (int n = 0; n < operand.count; ++n) {
    const TensorView view = operand.segments[n].tensor;
    if (!view.present()) return c.invalid("{} is missing", name);
    if (operand.segments[n].norm_weight.present()) return c.invalid("{} has no norm_weight", name);
    const int rank = packed ? 3 : 4;
    FOVEA_RETURN_IF_ERROR(check_view(c, name, view, rank, rank, true));
    if (packed) {
      FOVEA_RETURN_IF_ERROR(check_shape(c, name, view, {p.q().shape[0], p.q_heads, p.v_head_dim}));
    } else {
      const std::int64_t length = operand.count == 1 ? p.q_len : view.shape[2];
      FOVEA_RETURN_IF_ERROR(check_shape(c, name, view, {p.batch, p.q_heads, length, p.v_head_dim}));
      if (__builtin_add_overflow(rows, length, &rows)) rows = -1;
    }
    if (view.dtype != p.compute && view.dtype != DType::f32)
      return c.invalid("{} must be in the compute dtype {} or in f32; got {}", name,
                       name_of(p.compute), name_of(view.dtype));
    if (view.dtype != p.compute) p.features.add(Feature::f32_result);
  }
  if (!packed && rows != p.q_len)
    return c.invalid("{} segments must add up to q_len={}; got {}", name, p.q_len, rows);
  if (operand.count > 1) p.features.add(Feature::segmented_results);
  return {};
}

Status check_lse_shape(const Context& c, const char* name, const TensorView& view) {
  const Problem& p = c.problem;
  const bool packed = p.features.has(Feature::varlen);
  const int rank = packed ? 2 : 3;
  FOVEA_RETURN_IF_ERROR(check_view(c, name, view, rank, rank, true));
  if (packed)
    FOVEA_RETURN_IF_ERROR(check_shape(c, name, view, {p.q_heads, p.q().shape[0]}));
  else
    FOVEA_RETURN_IF_ERROR(check_shape(c, name, view, {p.batch, p.q_heads, p.q_len}));
  return {};
}

/// What backward reads in the shape of LSE is f32 (f64 too where the compute dtype is f64).
Status check_saved_lse(const Context& c, const char* name, const TensorView& view) {
  FOVEA_RETURN_IF_ERROR(check_lse_shape(c, name, view));
  if (view.dtype == DType::f32 || (view.dtype == DType::f64 && c.problem.compute == DType::f64))
    return {};
  return c.invalid("{} must be f32; got {}", name, name_of(view.dtype));
}

Status check_writable(const Context& c, const char* name, const TensorView& view) {
  if (writes_each_element_once(view)) return {};
  return c.invalid("{} would be written more than once in one place; got shape {} and strides {}",
                   name, shape_text(view),
                   list_text({view.strides.data(), static_cast<std::size_t>(view.rank)}));
}

/// A gradient has its input's shape, and its dtype or f32.
Status check_gradient(Context& c, const char* name, const TensorView& gradient,
                      const TensorView& input) {
  FOVEA_RETURN_IF_ERROR(check_view(c, name, gradient, input.rank, input.rank, true));
  if (gradient.shape != input.shape)
    return c.invalid("{} must have its input's shape {}; got {}", name, shape_text(input),
                     shape_text(gradient));
  if (gradient.dtype != input.dtype && gradient.dtype != DType::f32)
    return c.invalid("{} must be in its input's dtype {} or in f32; got {}", name,
                     name_of(input.dtype), name_of(gradient.dtype));
  if (gradient.dtype != input.dtype) c.problem.features.add(Feature::f32_result);
  return check_writable(c, name, gradient);
}

Status check_operand_gradient(Context& c, const char* name, const char* weight_name,
                              const MutableOperand& gradient, const Operand& input, bool& any) {
  if (gradient.count == 0) return {};
  if (gradient.count != input.count)
    return c.invalid("{} must have its input's {} segments; got {}", name, input.count,
                     gradient.count);
  for (int n = 0; n < gradient.count; ++n) {
    const auto& segment = gradient.segments[n];
    if (segment.tensor.present()) {
      any = true;
      FOVEA_RETURN_IF_ERROR(check_gradient(c, name, segment.tensor, input.segments[n].tensor));
    }
    if (segment.norm_weight.present()) {
      any = true;
      if (!input.segments[n].norm_weight.present())
        return c.invalid("{} gradient is asked for, but there is no weight", weight_name);
      FOVEA_RETURN_IF_ERROR(
          check_gradient(c, weight_name, segment.norm_weight, input.segments[n].norm_weight));
      c.problem.features.add(Feature::dnorm_weight);
    }
  }
  return {};
}

Status check_mask_gradient(Context& c) {
  Problem& p = c.problem;
  if (!p.features.has(Feature::additive_mask))
    return c.invalid("dmask needs an additive mask; got {}",
                     p.features.has(Feature::bool_mask) ? "a bool mask" : "none");
  FOVEA_RETURN_IF_ERROR(check_gradient(c, "dmask", p.dmask, p.params.mask));
  p.features.add(Feature::dmask);
  p.dmask4 = broadcast_to_4d(p.dmask);
  p.dmask4.shape = p.mask4.shape;
  return {};
}

}  // namespace

Status check_forward_results(Context& c) {
  Problem& p = c.problem;
  if (!p.out_segments.present()) return c.invalid("out is missing");
  FOVEA_RETURN_IF_ERROR(check_out(c, "out", p.out_segments));
  for (int n = 0; n < p.out_segments.count; ++n)
    FOVEA_RETURN_IF_ERROR(check_writable(c, "out", p.out_segments.segments[n].tensor));
  if (!p.lse.present()) return {};
  FOVEA_RETURN_IF_ERROR(check_lse_shape(c, "lse", p.lse));
  if (p.lse.dtype != DType::f32 && p.lse.dtype != DType::f64)
    return c.invalid("lse must be f32 or f64; got {}", name_of(p.lse.dtype));
  if (p.lse.dtype == DType::f64 && p.compute != DType::f64) p.features.add(Feature::f64_lse);
  return check_writable(c, "lse", p.lse);
}

Status check_gradients(Context& c) {
  Problem& p = c.problem;
  if (!p.saved_out_segments.present())
    return c.invalid("out is missing: backward needs forward's result");
  if (!p.saved_lse.present()) return c.invalid("lse is missing: backward needs forward's LSE");
  if (!p.dout_segments.present()) return c.invalid("dout is missing");
  FOVEA_RETURN_IF_ERROR(check_out(c, "out", p.saved_out_segments));
  FOVEA_RETURN_IF_ERROR(check_out(c, "dout", p.dout_segments));
  FOVEA_RETURN_IF_ERROR(check_saved_lse(c, "lse", p.saved_lse));
  if (p.dlse.present()) {
    FOVEA_RETURN_IF_ERROR(check_saved_lse(c, "dlse", p.dlse));
    p.features.add(Feature::dlse);
  }
  bool any = false;
  FOVEA_RETURN_IF_ERROR(check_operand_gradient(c, "dq", "q norm_weight", p.dq, p.params.q, any));
  FOVEA_RETURN_IF_ERROR(check_operand_gradient(c, "dk", "k norm_weight", p.dk, p.params.k, any));
  FOVEA_RETURN_IF_ERROR(check_operand_gradient(c, "dv", "v norm_weight", p.dv, p.params.v, any));
  if (p.dmask.present()) {
    any = true;
    FOVEA_RETURN_IF_ERROR(check_mask_gradient(c));
  }
  if (p.dsinks.present()) {
    any = true;
    if (!p.params.sinks.present()) return c.invalid("dsinks is asked for, but there are no sinks");
    FOVEA_RETURN_IF_ERROR(check_gradient(c, "dsinks", p.dsinks, p.params.sinks));
    p.features.add(Feature::dsinks);
  }
  if (!any) return c.invalid("no gradient is asked for");
  return {};
}

}  // namespace fovea::validation
