// Validation of q, k and v: shapes, lengths and dtypes.
#include "core/memory.h"
#include "core/status_macros.h"
#include "core/validate_parts.h"

namespace fovea::validation {
namespace {

/// What the segments of one operand agree on.
struct OperandDims {
  std::int64_t batch = 0, heads = 0, seq = 0, dim = 0;
};

/// Dense: segments [batch, heads, seq, dim]; packed: one [total, heads, dim].
Status read_operand(const Context& c, const char* name, const Operand& operand, bool packed,
                    OperandDims& dims) {
  if (operand.count < 1 || operand.count > kMaxSegments)
    return c.invalid("{} must have 1 to {} segments; got {}", name, kMaxSegments, operand.count);
  if (packed && operand.count != 1)
    return c.invalid("{} is packed (varlen) and must be one segment; got {}", name, operand.count);
  for (int n = 0; n < operand.count; ++n) {
    const TensorView& t = operand.segments[n].tensor;
    if (!t.present()) return c.invalid("{} is missing", name);
    const int rank = packed ? 3 : 4;
    FOVEA_RETURN_IF_ERROR(check_view(c, name, t, rank, rank, true));
    const OperandDims found = packed ? OperandDims{0, t.shape[1], t.shape[0], t.shape[2]}
                                     : OperandDims{t.shape[0], t.shape[1], t.shape[2], t.shape[3]};
    if (n == 0) {
      dims = found;
      continue;
    }
    if (found.batch != dims.batch || found.heads != dims.heads || found.dim != dims.dim)
      return c.invalid("{} segments must agree in batch, heads and head_dim; got {} and {}", name,
                       shape_text(operand.segments[0].tensor), shape_text(t));
    if (__builtin_add_overflow(dims.seq, found.seq, &dims.seq))
      return c.invalid("{} segments are longer together than 63 bits can count", name);
  }
  return {};
}

Status check_heads_and_dims(Context& c, const OperandDims& q, const OperandDims& k,
                            const OperandDims& v) {
  Problem& p = c.problem;
  if (k.heads != v.heads)
    return c.invalid("k and v must have the same heads; got k={}, v={}", k.heads, v.heads);
  if (q.heads < 1 || k.heads < 1)
    return c.invalid("heads must be positive; got q_heads={}, kv_heads={}", q.heads, k.heads);
  if (q.heads % k.heads != 0)
    return c.invalid("kv_heads must divide q_heads; got q_heads={}, kv_heads={}", q.heads, k.heads);
  if (q.dim != k.dim)
    return c.invalid("q and k must have the same head_dim; got q={}, k={}", q.dim, k.dim);
  if (q.dim < 1 || q.dim > kMaxHeadDim)
    return c.invalid("head_dim must be 1 to {}; got {}", kMaxHeadDim, q.dim);
  if (v.dim < 1 || v.dim > kMaxHeadDim)
    return c.invalid("v_head_dim must be 1 to {}; got {}", kMaxHeadDim, v.dim);
  p.q_heads = q.heads;
  p.kv_heads = k.heads;
  p.head_dim = q.dim;
  p.v_head_dim = v.dim;
  if (q.heads != k.heads) p.features.add(Feature::gqa);
  return {};
}

/// Key lengths of a paged cache come from the block table, those of packed k from cu_seqlens_k.
Status check_paged(Context& c) {
  Problem& p = c.problem;
  const PagedKv& paged = p.params.paged;
  p.features.add(Feature::paged);
  if (p.params.k.count != 1 || p.params.v.count != 1)
    return c.invalid("a paged KV cache must be one segment; got k={}, v={}", p.params.k.count,
                     p.params.v.count);
  FOVEA_RETURN_IF_ERROR(check_view(c, "block_table", paged.block_table, 2, 2, false));
  if (paged.block_table.dtype != DType::i32)
    return c.invalid("block_table must be i32; got {}", name_of(paged.block_table.dtype));
  const std::int64_t page_size = p.k().shape[1], max_pages = paged.block_table.shape[1];
  if (page_size < 1) return c.invalid("page_size must be positive; got {}", page_size);
  if (p.k().shape[0] != p.v().shape[0] || p.k().shape[1] != p.v().shape[1])
    return c.invalid("k and v pools must agree in pages and page_size; got {} and {}",
                     shape_text(p.k()), shape_text(p.v()));
  std::int64_t capacity = 0;
  if (__builtin_mul_overflow(page_size, max_pages, &capacity)) capacity = kUnbounded;
  if (paged.max_kv_len < 0 || paged.max_kv_len > capacity)
    return c.invalid("paged max_kv_len must be 0 to max_pages * page_size = {}; got {}", capacity,
                     paged.max_kv_len);
  p.kv_len = paged.max_kv_len;
  return {};
}

}  // namespace

Status check_view(const Context& c, const char* name, const TensorView& view, int min_rank,
                  int max_rank, bool floating) {
  FOVEA_RETURN_IF_ERROR(check_layout(c.where, name, view, min_rank, max_rank));
  if (floating && !is_floating(view.dtype))
    return c.invalid("{} must be f32, f16, bf16 or f64; got {}", name, name_of(view.dtype));
  if (!(view.device == c.problem.device))
    return c.invalid("all tensors must be on one device; got q on {}:{}, {} on {}:{}",
                     name_of(c.problem.device.type), c.problem.device.index, name,
                     name_of(view.device.type), view.device.index);
  return {};
}

Status check_shape(const Context& c, const char* name, const TensorView& view,
                   std::initializer_list<std::int64_t> shape) {
  bool same = view.rank == static_cast<int>(shape.size());
  std::size_t d = 0;
  for (const std::int64_t size : shape) {
    same = same && view.shape[d] == size;
    ++d;
  }
  if (same) return {};
  return c.invalid("{} must have shape {}; got {}", name, list_text({shape.begin(), shape.size()}),
                   shape_text(view));
}

Status check_index_view(const Context& c, const char* name, const TensorView& view,
                        std::initializer_list<std::int64_t> shape) {
  const int rank = static_cast<int>(shape.size());
  FOVEA_RETURN_IF_ERROR(check_view(c, name, view, rank, rank, false));
  if (view.dtype != DType::i32 && view.dtype != DType::i64)
    return c.invalid("{} must be i32 or i64; got {}", name, name_of(view.dtype));
  return check_shape(c, name, view, shape);
}

Status check_operands(Context& c) {
  Problem& p = c.problem;
  const AttentionParams& a = p.params;
  if (!a.q.present()) return c.invalid("q is missing");
  if (!a.k.present()) return c.invalid("k is missing");
  if (!a.v.present()) return c.invalid("v is missing");
  p.device = p.q().device;
  if (p.device.type > DeviceType::metal || p.device.index < 0)
    return c.invalid("q is on an unknown device {}:{}", static_cast<int>(p.device.type),
                     p.device.index);

  const bool packed = a.varlen.cu_seqlens_q.present();
  const bool paged = a.paged.block_table.present();
  if (!packed && a.varlen.cu_seqlens_k.present())
    return c.invalid("cu_seqlens_k is given without cu_seqlens_q");
  if (packed && !paged && !a.varlen.cu_seqlens_k.present())
    return c.invalid("cu_seqlens_q is given without cu_seqlens_k");
  if (paged && a.varlen.cu_seqlens_k.present())
    return c.invalid("cu_seqlens_k and a paged KV cache exclude each other");

  if (paged && p.direction == Direction::backward)
    return {StatusCode::unsupported, "[backward] a paged KV cache has no backward"};
  if (paged && !a.seqused_k.present())
    return c.invalid("a paged KV cache needs seqused_k for its lengths");

  OperandDims q, k, v;
  FOVEA_RETURN_IF_ERROR(read_operand(c, "q", a.q, packed, q));
  FOVEA_RETURN_IF_ERROR(read_operand(c, "k", a.k, packed && !paged, k));
  FOVEA_RETURN_IF_ERROR(read_operand(c, "v", a.v, packed && !paged, v));
  if (a.q.count > 1 || a.k.count > 1 || a.v.count > 1) p.features.add(Feature::segments);
  if (paged) {  // pools are [pages, page_size, kv_heads, dim]
    k.heads = p.k().shape[2];
    v.heads = p.v().shape[2];
  }
  FOVEA_RETURN_IF_ERROR(check_heads_and_dims(c, q, k, v));

  if (packed) {
    p.features.add(Feature::varlen);
    const Varlen& varlen = a.varlen;
    const std::int64_t bounds = varlen.cu_seqlens_q.shape[0];
    FOVEA_RETURN_IF_ERROR(check_index_view(c, "cu_seqlens_q", varlen.cu_seqlens_q, {bounds}));
    if (bounds < 1) return c.invalid("cu_seqlens_q must have batch + 1 elements; got none");
    p.batch = bounds - 1;
    if (varlen.max_q_len < 0 || varlen.max_kv_len < 0)
      return c.invalid("varlen maxima must not be negative; got max_q_len={}, max_kv_len={}",
                       varlen.max_q_len, varlen.max_kv_len);
    p.q_len = varlen.max_q_len;
    p.kv_len = varlen.max_kv_len;
  } else {
    p.batch = q.batch;
    p.q_len = q.seq;
    p.kv_len = k.seq;
  }
  if (paged) {
    FOVEA_RETURN_IF_ERROR(check_paged(c));
    FOVEA_RETURN_IF_ERROR(check_shape(c, "block_table", a.paged.block_table,
                                      {p.batch, a.paged.block_table.shape[1]}));
  } else {
    if (k.seq != v.seq)
      return c.invalid("k and v must have the same kv_len; got k={}, v={}", k.seq, v.seq);
    if (!packed && (k.batch != q.batch || v.batch != q.batch))
      return c.invalid("q, k and v must have the same batch; got q={}, k={}, v={}", q.batch,
                       k.batch, v.batch);
    if (packed)
      FOVEA_RETURN_IF_ERROR(
          check_index_view(c, "cu_seqlens_k", a.varlen.cu_seqlens_k, {p.batch + 1}));
  }
  if (a.seqused_k.present()) {
    p.features.add(Feature::seqused_k);
    FOVEA_RETURN_IF_ERROR(check_index_view(c, "seqused_k", a.seqused_k, {p.batch}));
  }
  return {};
}

Status check_dtypes(Context& c) {
  Problem& p = c.problem;
  const AttentionParams& a = p.params;
  const DType q = p.q().dtype, k = p.k().dtype, v = p.v().dtype;
  bool mixed = false, any_f64 = false, all_f64 = true;
  const auto look = [&](const Operand& operand) {
    for (int n = 0; n < operand.count; ++n) {
      const DType dtype = operand.segments[n].tensor.dtype;
      mixed = mixed || dtype != q;
      any_f64 = any_f64 || dtype == DType::f64;
      all_f64 = all_f64 && dtype == DType::f64;
    }
  };
  look(a.q);
  look(a.k);
  look(a.v);
  const auto mixed_error = [&](const char* remedy) {
    return c.invalid("q, k and v must have one dtype{}; got q={}, k={}, v={}", remedy, name_of(q),
                     name_of(k), name_of(v));
  };
  const DType cast = a.dtype_policy.compute;
  if (cast == DType::none) {
    if (mixed) return mixed_error(" (or DTypePolicy::cast)");
    p.compute = q;
  } else {
    if (!is_floating(cast))
      return c.invalid("DTypePolicy::cast must name f32, f16 or bf16; got {}", name_of(cast));
    if (any_f64 && !all_f64) return mixed_error(" where one is f64, which is never cast");
    if (cast == DType::f64 && !all_f64)
      return c.invalid("DTypePolicy::cast(f64) takes f64 inputs only; got q={}, k={}, v={}",
                       name_of(q), name_of(k), name_of(v));
    p.compute = all_f64 ? DType::f64 : cast;
    if (mixed || q != p.compute) p.features.add(Feature::mixed_dtypes);
  }
  if (a.f32_precision > F32Precision::tf32)
    return c.invalid("unknown F32Precision {}", static_cast<int>(a.f32_precision));
  if (a.f32_precision == F32Precision::tf32 && p.compute == DType::f32)
    p.features.add(Feature::tf32);
  const Quantization& quant = a.quantization;
  if (quant.dtype != QuantizedDType::none && quant.dtype != QuantizedDType::int8 &&
      quant.dtype != QuantizedDType::int4)
    return c.invalid("quantisation dtype must be none, int8 or int4; got {}",
                     static_cast<int>(quant.dtype));
  if (quant.block != QuantizedBlock::tensor_wise && quant.block != QuantizedBlock::block_wise)
    return c.invalid("quantisation block must be tensor_wise or block_wise; got {}",
                     static_cast<int>(quant.block));
  if (quant.dtype != QuantizedDType::none) p.features.add(Feature::quantization);
  return {};
}

}  // namespace fovea::validation
