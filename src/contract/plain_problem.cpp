#include "contract/plain_problem.h"

#include <algorithm>
#include <iterator>

#include "contract/philox.h"

namespace fovea::plain {

Element element_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return Element::f64;
    case DType::f16:
      return Element::f16;
    case DType::bf16:
      return Element::bf16;
    default:
      return Element::f32;
  }
}

namespace {

std::int64_t last_stride(const TensorView& view) {
  return view.strides[static_cast<std::size_t>(view.rank - 1)];
}

Floats floats(const TensorView& view) {
  if (!view.present()) return {};
  return {view.data, element_of(view.dtype), last_stride(view)};
}

Integers integers(const TensorView& view) {
  if (!view.present()) return {};
  return {view.data, view.dtype == DType::i64, last_stride(view)};
}

/// Dense [batch, heads, rows, columns] or packed [rows, heads, columns].
template <class Pointer, class View>
Segment<Pointer> segment(const View& view, bool packed, std::int64_t begin) {
  Segment<Pointer> s{};
  s.data = static_cast<Pointer>(view.data);
  s.element = element_of(view.dtype);
  s.begin = begin;
  s.end = begin + view.shape[packed ? 0 : 2];
  s.batch = packed ? 0 : view.strides[0];
  s.head = view.strides[1];
  s.row = view.strides[packed ? 0 : 2];
  s.column = view.strides[packed ? 2 : 3];
  return s;
}

/// A paged pool [pages, page_size, heads, columns]: a row's place within its page.
Segment<const char*> page_segment(const TensorView& pool, std::int64_t capacity) {
  return {static_cast<const char*>(pool.data),
          element_of(pool.dtype),
          0,
          capacity,
          0,
          pool.strides[2],
          pool.strides[1],
          pool.strides[3]};
}

Source source(const Problem& p, const Operand& operand, bool packed, std::int64_t width) {
  Source s{};
  s.compute = element_of(p.compute);
  s.width = width;
  std::int64_t begin = 0;
  for (int n = 0; n < operand.count; ++n) {
    s.segments.at[n] = segment<const char*>(operand.segments[n].tensor, packed, begin);
    begin = s.segments.at[n].end;
  }
  s.segments.count = operand.count;
  return s;
}

/// The rows that a block table and a pool make up.
std::int64_t paged_capacity(const Problem& p) {
  if (std::min(p.k().shape[0], p.v().shape[0]) == 0) return 0;
  return std::min(p.params.paged.block_table.shape[1] * p.k().shape[1], p.kv_len);
}

Source keys_or_values(const Problem& p, const Operand& operand, std::int64_t width) {
  const TensorView& table = p.params.paged.block_table;
  if (!table.present()) return source(p, operand, p.params.varlen.cu_seqlens_k.present(), width);
  const TensorView& pool = operand.segments[0].tensor;
  Source s{};
  s.compute = element_of(p.compute);
  s.width = width;
  s.segments.count = 1;
  s.segments.at[0] = page_segment(pool, paged_capacity(p));
  s.pages = {static_cast<const std::int32_t*>(table.data),
             table.strides[0],
             table.strides[1],
             pool.shape[1],
             pool.shape[0],
             pool.strides[0]};
  return s;
}

Angles angles(const TensorView& table) {
  const auto rows = static_cast<std::size_t>(table.rank - 2);
  Angles a{};
  a.data = table.data;
  a.element = element_of(table.dtype);
  a.batch = table.rank == 3 && table.shape[0] != 1 ? table.strides[0] : 0;
  a.row = table.strides[rows];
  a.column = table.strides[rows + 1];
  a.rows = table.shape[rows];
  return a;
}

Prologue prologue(const Problem& p, const Operand& operand, bool rotate, std::int64_t offset,
                  const TensorView& offsets) {
  Prologue x{};
  const Rope& rope = p.params.rope;
  x.norm = p.params.qk_norm.enabled;
  x.eps = static_cast<float>(p.params.qk_norm.eps);
  if (x.norm)
    for (int n = 0; n < operand.count; ++n) x.weights[n] = floats(operand.segments[n].norm_weight);
  x.rotate = rotate && rope.cos.present();
  if (!x.rotate) return x;
  x.cos = angles(rope.cos);
  x.sin = angles(rope.sin);
  x.interleaved = rope.style == RopeStyle::interleaved;
  x.duplicated = rope.table == RopeTable::duplicated;
  x.rotary_dim = rope.rotary_dim;
  x.offset = offset;
  x.offsets = integers(offsets);
  return x;
}

bool lies_as_f32(const Source& s) {
  return s.segments.count == 1 && s.segments.at[0].element == Element::f32 &&
         s.compute == Element::f32 && s.pages.table == nullptr && !s.prologue.norm &&
         !s.prologue.rotate && (s.segments.at[0].column == 1 || s.width == 1);
}

MaskArgs mask(const TensorView& mask4) {
  if (!mask4.present()) return {};
  return {mask4.data,
          mask4.dtype != DType::boolean,
          element_of(mask4.dtype),
          mask4.strides[0],
          mask4.strides[1],
          mask4.strides[2],
          mask4.strides[3]};
}

DropoutArgs dropout(const Dropout& d) {
  DropoutArgs x{};
  x.threshold = philox::threshold(d.probability);
  if (x.threshold == 0) return x;
  x.keep_scale = static_cast<float>(philox::keep_scale(x.threshold));
  x.seed = d.seed;
  x.offset = d.offset;
  x.seed_tensor = integers(d.seed_tensor);
  x.offset_tensor = integers(d.offset_tensor);
  x.streams = integers(d.streams);
  x.streams_batch = d.streams.present() ? d.streams.strides[0] : 0;
  x.row_origin = d.row_origin;
  x.column_origin = d.column_origin;
  return x;
}

ScoreArgs scores(const Problem& p) {
  const AttentionParams& a = p.params;
  ScoreArgs s{};
  s.mask = mask(p.mask4);
  s.softcap = static_cast<float>(a.softcap);
  s.slopes = floats(a.alibi.slopes);
  if (a.alibi.slopes.present() && a.alibi.slopes.rank == 2)
    s.slopes_batch = a.alibi.slopes.strides[0];
  s.slopes_bottom_right = a.alibi.anchor == Anchor::bottom_right;
  s.sinks = floats(a.sinks);
  s.dropout = dropout(a.dropout);
  return s;
}

}  // namespace

Call plain_call(const Problem& p) {
  const AttentionParams& a = p.params;
  Call args{};
  args.shape = {p.batch, p.q_heads, p.kv_heads, p.q_len, p.kv_len, p.head_dim, p.v_head_dim};
  args.q = source(p, a.q, a.varlen.cu_seqlens_q.present(), p.head_dim);
  args.k = keys_or_values(p, a.k, p.head_dim);
  args.v = keys_or_values(p, a.v, p.v_head_dim);
  args.q.prologue = prologue(p, a.q, a.rope.rotate_q, a.rope.q_offset, a.rope.q_offsets);
  args.k.prologue = prologue(p, a.k, a.rope.rotate_k, a.rope.k_offset, a.rope.k_offsets);
  for (Source* x : {&args.q, &args.k, &args.v}) x->in_place = lies_as_f32(*x);
  args.lengths.cu_q = integers(a.varlen.cu_seqlens_q);
  args.lengths.cu_k = integers(a.varlen.cu_seqlens_k);
  args.lengths.used_k = integers(a.seqused_k);
  if (args.lengths.cu_q.data != nullptr) args.lengths.total_q = p.q().shape[0];
  if (args.lengths.cu_k.data != nullptr) args.lengths.total_k = p.k().shape[0];
  if (a.paged.block_table.present()) args.shape.kv_len = paged_capacity(p);
  if (a.band) {
    args.band = {a.band->left, a.band->right, a.band->anchor == Anchor::bottom_right};
  }
  args.scores = scores(p);
  args.scale = p.scale;
  return args;
}

Source source_like_out(const Problem& p, const Operand& operand) {
  Source s = source(p, operand, p.params.varlen.cu_seqlens_q.present(), p.v_head_dim);
  s.in_place = lies_as_f32(s);
  return s;
}

Sink sink_like_out(const Problem& p, const MutableOperand& out) {
  Sink s{};
  s.width = p.v_head_dim;
  std::int64_t begin = 0;
  for (int n = 0; n < out.count; ++n) {
    s.segments.at[n] =
        segment<char*>(out.segments[n].tensor, p.params.varlen.cu_seqlens_q.present(), begin);
    begin = s.segments.at[n].end;
  }
  s.segments.count = out.count;
  return s;
}

Sink sink_of_gradient(const MutableOperand& gradient, const Source& input) {
  Sink s{};
  s.width = input.width;
  bool any = false;
  for (int n = 0; n < input.segments.count; ++n) {
    const MutableTensorView& view = gradient.segments[n].tensor;
    Segment<char*>& to = s.segments.at[n];
    if (view.present()) to = segment<char*>(view, view.rank == 3, 0);
    any = any || view.present();
    to.begin = input.segments.at[n].begin;
    to.end = input.segments.at[n].end;
  }
  s.segments.count = any ? input.segments.count : 0;
  return s;
}

bool wanted(const MutableOperand& gradient) {
  return std::any_of(std::begin(gradient.segments), std::end(gradient.segments),
                     [](const auto& segment) {
                       return segment.tensor.present() || segment.norm_weight.present();
                     });
}

MaskSink mask_sink(const Problem& p) {
  MaskSink s{};
  const MutableTensorView& dmask4 = p.dmask4;
  if (!p.dmask.present() || p.dmask.elements() == 0) return s;
  s.data = dmask4.data;
  s.element = element_of(dmask4.dtype);
  for (std::size_t d = 0; d < 4; ++d) {
    s.strides[d] = dmask4.strides[d];
    s.sizes[d] = s.strides[d] == 0 ? 1 : dmask4.shape[d];
  }
  return s;
}

}  // namespace fovea::plain
