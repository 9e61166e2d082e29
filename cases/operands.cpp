// Memory for q, k, v and their gradients in a case's layout.
#include <algorithm>

#include "cases/inputs.h"

namespace fovea::cases {
namespace {

/// Lengths of segments: together `total`, all different where possible.
std::vector<std::int64_t> segment_lengths(std::int64_t total, std::int64_t count) {
  std::vector<std::int64_t> lengths;
  std::int64_t rest = total;
  for (std::int64_t n = 0; n < count; ++n) {
    const std::int64_t left = count - n;
    const std::int64_t length = left == 1 ? rest : std::max<std::int64_t>(rest / left - n - 1, 0);
    lengths.push_back(length);
    rest -= length;
  }
  return lengths;
}

/// q, k and v as views of one [batch, seq, 3, heads, dim].
Operands make_packed(const Case& c, DType dtype) {
  const std::int64_t elements = c.batch * c.q_len * 3 * c.q_heads * c.head_dim;
  Tensor whole = make_tensor(dtype, {elements}, kPlain, Layout::bhsd, c.unaligned);
  const PackedQkv<void*> views =
      packed_qkv(whole.view.data, dtype, c.batch, c.q_len, c.q_heads, c.head_dim);
  const auto part = [&](const MutableTensorView& view) {
    Tensor tensor{whole.buffer, view};
    if (elements == 0) tensor.view.data = nullptr;
    return std::vector<Tensor>{tensor};
  };
  return {part(views.q), part(views.k), part(views.v)};
}

std::vector<Tensor> make_dense(const Case& c, DType dtype, std::int64_t heads, std::int64_t seq,
                               std::int64_t dim, std::int64_t segments, bool expand) {
  std::vector<Tensor> tensors;
  for (const std::int64_t length : segment_lengths(seq, segments)) {
    Tensor tensor = make_tensor(dtype, {c.batch, expand ? 1 : heads, length, dim}, kDense, c.layout,
                                c.unaligned);
    if (expand) {
      tensor.view.shape[1] = heads;
      tensor.view.strides[1] = 0;
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace

Operands make_operands(const Case& c, const Lengths& lengths, const std::vector<DType>& qkv_dtypes,
                       bool gradients) {
  if (c.layout == Layout::packed_qkv) return make_packed(c, qkv_dtypes[0]);
  Operands operands;
  const bool packed = c.varlen != IndexKind::none;
  const bool expand = c.layout == Layout::stride0_kv && !gradients;
  const auto rows = [&](DType dtype, std::int64_t total, std::int64_t heads, std::int64_t dim) {
    return std::vector<Tensor>{
        make_tensor(dtype, {total, heads, dim}, kPacked, c.layout, c.unaligned)};
  };
  operands.q =
      packed ? rows(qkv_dtypes[0], lengths.total_q, c.q_heads, c.head_dim)
             : make_dense(c, qkv_dtypes[0], c.q_heads, c.q_len, c.head_dim, c.q_segments, false);
  if (c.page_size != 0) {
    const std::int64_t pages_each = (c.kv_len + c.page_size - 1) / c.page_size;
    const std::int64_t pages = c.batch * pages_each + 2;  // two that nobody uses
    const auto pool = [&](DType dtype, std::int64_t dim) {
      return std::vector<Tensor>{
          make_tensor(dtype, {pages, c.page_size, c.kv_heads, dim}, kPool, c.layout, c.unaligned)};
    };
    operands.k = pool(qkv_dtypes[1], c.head_dim);
    operands.v = pool(qkv_dtypes[2], c.v_head_dim);
  } else if (packed) {
    operands.k = rows(qkv_dtypes[1], lengths.total_k, c.kv_heads, c.head_dim);
    operands.v = rows(qkv_dtypes[2], lengths.total_k, c.kv_heads, c.v_head_dim);
  } else {
    operands.k =
        make_dense(c, qkv_dtypes[1], c.kv_heads, c.kv_len, c.head_dim, c.k_segments, expand);
    operands.v =
        make_dense(c, qkv_dtypes[2], c.kv_heads, c.kv_len, c.v_head_dim, c.v_segments, expand);
  }
  return operands;
}

std::vector<Tensor> make_like_out(const Case& c, const Lengths& lengths, DType dtype) {
  // A packed projection has no room for it: [batch, seq, heads, dim] is what goes with one.
  Case like = c;
  if (c.layout == Layout::packed_qkv) like.layout = Layout::bshd;
  if (c.varlen != IndexKind::none) {
    return {make_tensor(dtype, {lengths.total_q, c.q_heads, c.v_head_dim}, kPacked, like.layout,
                        c.unaligned)};
  }
  return make_dense(like, dtype, c.q_heads, c.q_len, c.v_head_dim, c.out_segments, false);
}

Tensor make_like_lse(const Case& c, const Lengths& lengths) {
  return make_like_lse(c, lengths, c.compute() == DType::f64 ? DType::f64 : DType::f32);
}

Tensor make_like_lse(const Case& c, const Lengths& lengths, DType dtype) {
  if (c.varlen != IndexKind::none) return make_tensor(dtype, {c.q_heads, lengths.total_q});
  // [batch, seq, heads] for bshd would be no layout that anybody has.
  const bool plain = c.layout == Layout::bshd || c.layout == Layout::packed_qkv;
  return make_tensor(dtype, {c.batch, c.q_heads, c.q_len}, kLse, plain ? Layout::bhsd : c.layout,
                     c.unaligned);
}

namespace {

RowPlace place_in_segments(const std::vector<Tensor>& segments, std::int64_t b, std::int64_t row) {
  RowPlace place;
  while (place.segment + 1 < segments.size() && row >= segments[place.segment].view.shape[2]) {
    row -= segments[place.segment].view.shape[2];
    ++place.segment;
  }
  place.index = {b, 0, row, 0};
  return place;
}

RowPlace place_in_packed(std::int64_t row) {
  RowPlace place;
  place.index = {row, 0, 0};
  place.heads_axis = 1;
  place.dim_axis = 2;
  return place;
}

}  // namespace

RowPlace Inputs::place_of_key(const std::vector<Tensor>& segments, std::int64_t b,
                              std::int64_t j) const {
  if (c.page_size != 0) {
    RowPlace place;
    const auto page = static_cast<std::int64_t>(block_table.get({b, j / c.page_size}));
    place.index = {page, j % c.page_size, 0, 0};
    place.heads_axis = 2;
    return place;
  }
  if (c.varlen != IndexKind::none) {
    return place_in_packed(lengths.k_begin[static_cast<std::size_t>(b)] + j);
  }
  return place_in_segments(segments, b, j);
}

RowPlace Inputs::place_of_query(const std::vector<Tensor>& segments, std::int64_t b,
                                std::int64_t i) const {
  if (c.varlen != IndexKind::none) {
    return place_in_packed(lengths.q_begin[static_cast<std::size_t>(b)] + i);
  }
  return place_in_segments(segments, b, i);
}

}  // namespace fovea::cases
