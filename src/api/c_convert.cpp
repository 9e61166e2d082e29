#include "api/c_convert.h"

#include "core/status_macros.h"

namespace fovea::c_api {
namespace {

static_assert(FOVEA_MAX_RANK == kMaxRank && FOVEA_MAX_SEGMENTS == kMaxSegments);
static_assert(FOVEA_FP8_E5M2 == static_cast<int>(DType::fp8_e5m2));
static_assert(FOVEA_UNBOUNDED == kUnbounded);

/// Enumerators outside an enumeration's range become its largest value, which validation refuses.
template <class Enum>
Enum enum_of(std::int32_t value) {
  return static_cast<Enum>(value < 0 || value > 254 ? 255 : value);
}

/// A zeroed field is its default.
template <class Enum>
Enum enum_or(std::int32_t value, Enum if_zero) {
  return value == 0 ? if_zero : enum_of<Enum>(value);
}

template <class Operands>
Operands operand_of(const fovea_operand& from) {
  Operands operand;
  operand.count = from.count;
  for (int n = 0; n < from.count && n < kMaxSegments; ++n)
    operand.segments[n] = {tensor_of(from.segments[n].tensor),
                           tensor_of(from.segments[n].norm_weight)};
  return operand;
}

Dropout dropout_of(const fovea_params& p) {
  Dropout dropout;
  dropout.probability = p.dropout_probability;
  dropout.seed = p.dropout_seed;
  dropout.offset = p.dropout_offset;
  dropout.seed_tensor = tensor_of(p.dropout_seed_tensor);
  dropout.offset_tensor = tensor_of(p.dropout_offset_tensor);
  dropout.streams = tensor_of(p.dropout_streams);
  dropout.row_origin = p.dropout_row_origin;
  dropout.column_origin = p.dropout_column_origin;
  return dropout;
}

Rope rope_of(const fovea_params& p) {
  Rope rope;
  rope.cos = tensor_of(p.rope_cos);
  rope.sin = tensor_of(p.rope_sin);
  rope.style = enum_or(p.rope_style, rope.style);
  rope.table = enum_or(p.rope_table, rope.table);
  rope.rotary_dim = p.rotary_dim;
  rope.q_offset = p.rope_q_offset;
  rope.k_offset = p.rope_k_offset;
  rope.q_offsets = tensor_of(p.rope_q_offsets);
  rope.k_offsets = tensor_of(p.rope_k_offsets);
  rope.rotate_q = p.rope_skip_q == 0;
  rope.rotate_k = p.rope_skip_k == 0;
  return rope;
}

Status params_of(const fovea_params* from, AttentionParams& to) {
  fovea_params p;
  FOVEA_RETURN_IF_ERROR(read_struct(from, "fovea_params", p));
  to.q = operand_of<Operand>(p.q);
  to.k = operand_of<Operand>(p.k);
  to.v = operand_of<Operand>(p.v);
  if (p.has_scale != 0) to.scale = p.scale;
  if (p.band_anchor != FOVEA_ANCHOR_NONE)
    to.band = Band{enum_of<Anchor>(p.band_anchor), p.band_left, p.band_right};
  to.mask = tensor_of(p.mask);
  to.alibi = {tensor_of(p.alibi_slopes), enum_or(p.alibi_anchor, to.alibi.anchor)};
  to.softcap = p.softcap;
  to.sinks = tensor_of(p.sinks);
  to.dropout = dropout_of(p);
  to.varlen = {tensor_of(p.cu_seqlens_q), tensor_of(p.cu_seqlens_k), p.max_q_len, p.max_kv_len};
  to.seqused_k = tensor_of(p.seqused_k);
  to.paged = {tensor_of(p.block_table), p.paged_max_kv_len};
  to.qk_norm.enabled = p.qk_norm != 0;
  if (p.qk_norm_eps != 0) to.qk_norm.eps = p.qk_norm_eps;
  to.rope = rope_of(p);
  to.dtype_policy.compute = enum_of<DType>(p.cast_dtype);
  to.f32_precision = p.tf32 != 0 ? F32Precision::tf32 : F32Precision::ieee;
  to.quantization = {enum_of<QuantizedDType>(p.quantized_dtype),
                     enum_of<QuantizedBlock>(p.quantized_block)};
  return {};
}

}  // namespace

MutableTensorView tensor_of(const fovea_tensor& from) {
  MutableTensorView view;
  view.data = from.data;
  view.dtype = enum_of<DType>(from.dtype);
  view.device = {enum_of<DeviceType>(from.device_type), from.device_index};
  view.rank = from.rank < 0 || from.rank > kMaxRank ? -1 : from.rank;
  for (std::size_t d = 0; d < kMaxRank; ++d) {
    view.shape[d] = from.shape[d];
    view.strides[d] = from.strides[d];
  }
  return view;
}

Result<ForwardArgs> forward_args(const fovea_forward_args* from) {
  fovea_forward_args a;
  FOVEA_RETURN_IF_ERROR(read_struct(from, "fovea_forward_args", a));
  ForwardArgs args;
  FOVEA_RETURN_IF_ERROR(params_of(a.params, args.params));
  args.out = operand_of<MutableOperand>(a.out);
  args.lse = tensor_of(a.lse);
  return args;
}

Result<BackwardArgs> backward_args(const fovea_backward_args* from) {
  fovea_backward_args a;
  FOVEA_RETURN_IF_ERROR(read_struct(from, "fovea_backward_args", a));
  BackwardArgs args;
  FOVEA_RETURN_IF_ERROR(params_of(a.params, args.params));
  args.out = operand_of<Operand>(a.out);
  args.dout = operand_of<Operand>(a.dout);
  args.lse = tensor_of(a.lse);
  args.dlse = tensor_of(a.dlse);
  args.dq = operand_of<MutableOperand>(a.dq);
  args.dk = operand_of<MutableOperand>(a.dk);
  args.dv = operand_of<MutableOperand>(a.dv);
  args.dmask = tensor_of(a.dmask);
  args.dsinks = tensor_of(a.dsinks);
  return args;
}

}  // namespace fovea::c_api
