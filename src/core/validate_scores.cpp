// Validation of what shapes the scores: scale, band, mask, ALiBi, softcap, sinks, dropout; and of
// the prologue: QK-norm and RoPE.
#include <cmath>

#include "contract/band.h"
#include "contract/philox.h"
#include "core/memory.h"
#include "core/status_macros.h"
#include "core/validate_parts.h"

namespace fovea::validation {
namespace {

bool is_anchor(Anchor anchor) {
  return anchor == Anchor::top_left || anchor == Anchor::bottom_right;
}

Status check_band(Context& c) {
  Problem& p = c.problem;
  if (!p.params.band) return {};
  const Band& band = *p.params.band;
  if (!is_anchor(band.anchor))
    return c.invalid("band anchor must be top_left or bottom_right; got {}",
                     static_cast<int>(band.anchor));
  if (band.left < 0 || band.right < 0)
    return c.invalid("band sides must be >= 0 or kUnbounded; got left={}, right={}", band.left,
                     band.right);
  if (band.left != kUnbounded || band.right != kUnbounded) p.features.add(Feature::band);
  return {};
}

Status check_mask(Context& c) {
  Problem& p = c.problem;
  const TensorView& mask = p.params.mask;
  if (!mask.present()) return {};
  FOVEA_RETURN_IF_ERROR(check_view(c, "mask", mask, 1, 4, false));
  if (mask.dtype != DType::boolean && !is_floating(mask.dtype))
    return c.invalid("mask must be bool (true = attend) or a float dtype (additive); got {}",
                     name_of(mask.dtype));
  p.features.add(mask.dtype == DType::boolean ? Feature::bool_mask : Feature::additive_mask);
  p.mask4 = broadcast_to_4d(mask);
  const std::int64_t full[4] = {p.batch, p.q_heads, p.q_len, p.kv_len};
  for (std::size_t d = 0; d < 4; ++d) {
    if (p.mask4.shape[d] != 1 && p.mask4.shape[d] != full[d])
      return c.invalid("mask must broadcast to {}; got {}", list_text(full), shape_text(mask));
    p.mask4.shape[d] = full[d];
  }
  return {};
}

Status check_alibi(Context& c) {
  Problem& p = c.problem;
  const Alibi& alibi = p.params.alibi;
  if (!alibi.slopes.present()) return {};
  FOVEA_RETURN_IF_ERROR(check_view(c, "alibi slopes", alibi.slopes, 1, 2, true));
  if (alibi.slopes.rank == 1)
    FOVEA_RETURN_IF_ERROR(check_shape(c, "alibi slopes", alibi.slopes, {p.q_heads}));
  else
    FOVEA_RETURN_IF_ERROR(check_shape(c, "alibi slopes", alibi.slopes, {p.batch, p.q_heads}));
  if (!is_anchor(alibi.anchor))
    return c.invalid("alibi anchor must be top_left or bottom_right; got {}",
                     static_cast<int>(alibi.anchor));
  if (p.params.band && p.params.band->anchor != alibi.anchor)
    return c.invalid("alibi anchor must equal the band's anchor");
  p.features.add(Feature::alibi);
  return {};
}

Status check_norm_weights(Context& c, const char* name, const Operand& operand, bool allowed) {
  for (int n = 0; n < operand.count; ++n) {
    const TensorView& weight = operand.segments[n].norm_weight;
    if (!weight.present()) continue;
    if (!allowed) return c.invalid("{} is given without QkNorm::enabled (or for v)", name);
    FOVEA_RETURN_IF_ERROR(check_view(c, name, weight, 1, 1, true));
    FOVEA_RETURN_IF_ERROR(check_shape(c, name, weight, {c.problem.head_dim}));
  }
  return {};
}

Status check_rope(Context& c) {
  Problem& p = c.problem;
  Rope& rope = p.params.rope;
  if (!rope.cos.present() && !rope.sin.present()) return {};
  if (!rope.cos.present() || !rope.sin.present())
    return c.invalid("rope needs both cos and sin; {} is missing",
                     rope.cos.present() ? "sin" : "cos");
  if (rope.style != RopeStyle::interleaved && rope.style != RopeStyle::half)
    return c.invalid("unknown rope style {}", static_cast<int>(rope.style));
  if (rope.table != RopeTable::half && rope.table != RopeTable::duplicated)
    return c.invalid("unknown rope table layout {}", static_cast<int>(rope.table));
  if (rope.rotary_dim == 0) rope.rotary_dim = p.head_dim;
  if (rope.rotary_dim < 0 || rope.rotary_dim > p.head_dim || rope.rotary_dim % 2 != 0)
    return c.invalid("rotary_dim must be even and at most head_dim={}; got {}", p.head_dim,
                     rope.rotary_dim);
  FOVEA_RETURN_IF_ERROR(check_view(c, "rope cos", rope.cos, 2, 3, true));
  FOVEA_RETURN_IF_ERROR(check_view(c, "rope sin", rope.sin, 2, 3, true));
  const std::int64_t columns =
      rope.table == RopeTable::half ? rope.rotary_dim / 2 : rope.rotary_dim;
  for (const TensorView* table : {&rope.cos, &rope.sin}) {
    const char* name = table == &rope.cos ? "rope cos" : "rope sin";
    const auto last = static_cast<std::size_t>(table->rank - 1);
    if (table->shape[last] != columns)
      return c.invalid("{} must have {} columns for rotary_dim={} and a {} table; got {}", name,
                       columns, rope.rotary_dim,
                       rope.table == RopeTable::half ? "half" : "duplicated", shape_text(*table));
    if (table->rank == 3 && table->shape[0] != 1 && table->shape[0] != p.batch)
      return c.invalid("{} must have 1 or batch={} in its first dimension; got {}", name, p.batch,
                       shape_text(*table));
  }
  if (rope.cos.rank != rope.sin.rank || rope.cos.shape != rope.sin.shape)
    return c.invalid("rope cos and sin must have the same shape; got {} and {}",
                     shape_text(rope.cos), shape_text(rope.sin));
  if (rope.q_offsets.present())
    FOVEA_RETURN_IF_ERROR(check_index_view(c, "rope q_offsets", rope.q_offsets, {p.batch}));
  if (rope.k_offsets.present())
    FOVEA_RETURN_IF_ERROR(check_index_view(c, "rope k_offsets", rope.k_offsets, {p.batch}));
  if (!rope.rotate_q && !rope.rotate_k) return {};
  p.features.add(Feature::rope);
  return check_rope_rows(c.where, p);
}

/// What kernels make of a scale, it times log2(e) and gradients times it, must be f32 numbers with
/// all their digits.
constexpr double kLeastScale = 1e-30, kMostScale = 1e30;

}  // namespace

Status check_scores(Context& c) {
  Problem& p = c.problem;
  p.scale = p.params.scale.value_or(1.0 / std::sqrt(static_cast<double>(p.head_dim)));
  const double size = std::abs(p.scale);
  if (!(size == 0 || (size >= kLeastScale && size <= kMostScale)))
    return c.invalid("scale must be 0 or have a magnitude from {} to {}; got {}", kLeastScale,
                     kMostScale, p.scale);
  if (!std::isfinite(p.params.softcap) || p.params.softcap < 0)
    return c.invalid("softcap must be finite and >= 0; got {}", p.params.softcap);
  if (p.params.softcap > 0) p.features.add(Feature::softcap);
  FOVEA_RETURN_IF_ERROR(check_band(c));
  FOVEA_RETURN_IF_ERROR(check_mask(c));
  FOVEA_RETURN_IF_ERROR(check_alibi(c));
  if (p.params.sinks.present()) {
    FOVEA_RETURN_IF_ERROR(check_view(c, "sinks", p.params.sinks, 1, 1, true));
    FOVEA_RETURN_IF_ERROR(check_shape(c, "sinks", p.params.sinks, {p.q_heads}));
    p.features.add(Feature::sinks);
  }
  return {};
}

Status check_dropout_range(const std::string& where, const Problem& p) {
  const Dropout& dropout = p.params.dropout;
  const auto fail = [&](std::string message) {
    return Status(StatusCode::invalid, "[" + where + "] " + std::move(message));
  };
  const auto too_far = [](std::int64_t origin, std::int64_t length, std::uint64_t limit) {
    return origin < 0 || static_cast<std::uint64_t>(origin) > limit ||
           static_cast<std::uint64_t>(origin) + static_cast<std::uint64_t>(length) > limit;
  };
  if (too_far(dropout.row_origin, p.q_len, philox::kRowLimit))
    return fail(formatted("dropout rows must lie in [0, 2^33); got row_origin={}, q_len={}",
                          dropout.row_origin, p.q_len));
  if (too_far(dropout.column_origin, p.kv_len, philox::kColumnLimit))
    return fail(formatted("dropout columns must lie in [0, 2^34); got column_origin={}, kv_len={}",
                          dropout.column_origin, p.kv_len));
  std::int64_t streams = 0;
  if (!dropout.streams.present() &&
      (__builtin_mul_overflow(p.batch, p.q_heads, &streams) || streams > 0x100000000))
    return fail(
        formatted("dropout has 2^32 streams; got batch={} * q_heads={}", p.batch, p.q_heads));
  return {};
}

Status check_dropout(Context& c) {
  Problem& p = c.problem;
  const Dropout& dropout = p.params.dropout;
  if (!(dropout.probability >= 0 && dropout.probability <= 1))
    return c.invalid("dropout probability must be in [0, 1]; got {}", dropout.probability);
  if (philox::threshold(dropout.probability) == 0) return {};
  p.features.add(Feature::dropout);
  const auto check_value = [&](const char* name, const TensorView& view) -> Status {
    if (!view.present()) return {};
    FOVEA_RETURN_IF_ERROR(check_view(c, name, view, 1, 1, false));
    if (view.dtype != DType::i64)
      return c.invalid("{} must be i64; got {}", name, name_of(view.dtype));
    return check_shape(c, name, view, {1});
  };
  FOVEA_RETURN_IF_ERROR(check_value("dropout seed_tensor", dropout.seed_tensor));
  FOVEA_RETURN_IF_ERROR(check_value("dropout offset_tensor", dropout.offset_tensor));
  if (dropout.streams.present())
    FOVEA_RETURN_IF_ERROR(
        check_index_view(c, "dropout streams", dropout.streams, {p.batch, p.q_heads}));
  return check_dropout_range(c.where, p);
}

Status check_rope_rows(const std::string& where, const Problem& p) {
  const Rope& rope = p.params.rope;
  const std::int64_t rows = rope.cos.shape[static_cast<std::size_t>(rope.cos.rank - 2)];
  const auto check = [&](const char* name, bool rotated, std::int64_t offset,
                         std::int64_t length) -> Status {
    if (!rotated) return {};
    if (offset < 0)
      return {StatusCode::invalid,
              formatted("[{}] rope {}_offset must not be negative; got {}", where, name, offset)};
    if (length > 0 && (offset > rows || length > rows - offset))
      return {StatusCode::invalid,
              formatted("[{}] rope tables have {} rows; {} needs rows {} to {}", where, rows, name,
                        offset, saturating_add(saturating_add(offset, length), -1))};
    return {};
  };
  FOVEA_RETURN_IF_ERROR(check("q", rope.rotate_q, rope.q_offset, p.q_len));
  return check("k", rope.rotate_k, rope.k_offset, p.kv_len);
}

Status check_prologue(Context& c) {
  Problem& p = c.problem;
  const QkNorm& norm = p.params.qk_norm;
  if (norm.enabled) {
    if (!std::isfinite(norm.eps) || norm.eps < 0)
      return c.invalid("QkNorm eps must be finite and >= 0; got {}", norm.eps);
    p.features.add(Feature::qk_norm);
  }
  FOVEA_RETURN_IF_ERROR(check_norm_weights(c, "q norm_weight", p.params.q, norm.enabled));
  FOVEA_RETURN_IF_ERROR(check_norm_weights(c, "k norm_weight", p.params.k, norm.enabled));
  FOVEA_RETURN_IF_ERROR(check_norm_weights(c, "v norm_weight", p.params.v, false));
  return check_rope(c);
}

}  // namespace fovea::validation
