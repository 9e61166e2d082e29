// Rows of the operands: segments, packed and paged layouts, QK-norm and RoPE, forth and back.
// The formulas stand in reference_operands.h.
#include "cpu/reference_operands.h"

#include <algorithm>
#include <cmath>

#include "contract/band.h"

namespace fovea::reference {
namespace {

bool packed_q(const Problem& p) { return p.params.varlen.cu_seqlens_q.present(); }
bool packed_k(const Problem& p) { return p.params.varlen.cu_seqlens_k.present(); }
bool paged(const Problem& p) { return p.params.paged.block_table.present(); }

/// Entries that fall are raised to the largest before them, so that no two sequences share a row.
Range packed_rows_of(const TensorView& cu_seqlens, std::int64_t b, std::int64_t total,
                     std::int64_t max_len) {
  const std::int64_t stride = cu_seqlens.strides[0];
  std::int64_t begin = 0;
  for (std::int64_t n = 0; n <= b; ++n)
    begin = std::max(begin, load_integer(cu_seqlens, n * stride));
  begin = std::min(begin, total);
  const std::int64_t end = std::clamp(load_integer(cu_seqlens, (b + 1) * stride), begin, total);
  return {begin, begin + std::min(end - begin, max_len)};
}

std::int64_t paged_capacity(const Problem& p) {
  const std::int64_t pages = std::min(p.k().shape[0], p.v().shape[0]);
  if (pages == 0) return 0;
  const std::int64_t rows = p.params.paged.block_table.shape[1] * p.k().shape[1];
  return std::min(rows, p.kv_len);
}

const Operand& operand_of(const Problem& p, Side side) {
  return side == Side::q ? p.params.q : side == Side::k ? p.params.k : p.params.v;
}

bool normalised(const Problem& p, Side side) { return p.params.qk_norm.enabled && side != Side::v; }

bool rotated(const Problem& p, Side side) {
  const Rope& rope = p.params.rope;
  if (!rope.cos.present()) return false;
  return (side == Side::q && rope.rotate_q) || (side == Side::k && rope.rotate_k);
}

Elements norm_weights(const TensorView& weight) {
  return elements_of(weight, 0, weight.strides[0]);
}

/// First element of the table row that position `row` of sequence `b` uses. Rows beyond the table,
/// which only offsets in device memory can ask for, read its last.
std::int64_t place_of_angles(const Problem& p, const TensorView& table, Side side, std::int64_t b,
                             std::int64_t row) {
  const Rope& rope = p.params.rope;
  const TensorView& offsets = side == Side::q ? rope.q_offsets : rope.k_offsets;
  std::int64_t at = saturating_add(row, side == Side::q ? rope.q_offset : rope.k_offset);
  if (offsets.present()) at = saturating_add(at, load_integer(offsets, b * offsets.strides[0]));
  const auto rows = static_cast<std::size_t>(table.rank - 2);
  at = std::clamp(at, std::int64_t{0}, table.shape[rows] - 1);
  const bool per_batch = table.rank == 3 && table.shape[0] != 1;
  return at * table.strides[rows] + (per_batch ? b * table.strides[0] : 0);
}

/// RoPE at position `row` of sequence `b`.
Rotation rotation_at(const Problem& p, Side side, std::int64_t b, std::int64_t row) {
  const Rope& rope = p.params.rope;
  const auto column = static_cast<std::size_t>(rope.cos.rank - 1);
  const auto row_of = [&](const TensorView& table) {
    return elements_of(table, place_of_angles(p, table, side, b, row), table.strides[column]);
  };
  return {row_of(rope.cos), row_of(rope.sin), rope.rotary_dim, rope.style == RopeStyle::interleaved,
          rope.table == RopeTable::duplicated};
}

}  // namespace

Sequence sequence_of(const Problem& p, std::int64_t b) {
  Sequence s;
  s.batch = b;
  s.q_len = p.q_len;
  s.kv_capacity = paged(p) ? paged_capacity(p) : p.kv_len;
  if (packed_q(p)) {
    const Range rows = packed_rows_of(p.params.varlen.cu_seqlens_q, b, p.q().shape[0], p.q_len);
    s.q_begin = rows.begin;
    s.q_len = rows.size();
  }
  if (packed_k(p)) {
    const Range rows = packed_rows_of(p.params.varlen.cu_seqlens_k, b, p.k().shape[0], p.kv_len);
    s.k_begin = rows.begin;
    s.kv_capacity = rows.size();
  }
  s.kv_len = s.kv_capacity;
  const TensorView& used = p.params.seqused_k;
  if (used.present())
    s.kv_len = std::clamp(load_integer(used, b * used.strides[0]), std::int64_t{0}, s.kv_capacity);
  return s;
}

RowPlace place_of_q_row(const Problem& p, const TensorView& view, const Sequence& s,
                        std::int64_t head, std::int64_t row) {
  if (packed_q(p))
    return {(s.q_begin + row) * view.strides[0] + head * view.strides[1], view.strides[2]};
  return {s.batch * view.strides[0] + head * view.strides[1] + row * view.strides[2],
          view.strides[3]};
}

std::int64_t place_of_lse(const Problem& p, const TensorView& view, const Sequence& s,
                          std::int64_t head, std::int64_t row) {
  if (packed_q(p)) return head * view.strides[0] + (s.q_begin + row) * view.strides[1];
  return s.batch * view.strides[0] + head * view.strides[1] + row * view.strides[2];
}

RowPlace place_of(const Problem& p, Side side, const TensorView& view, const Sequence& s,
                  std::int64_t head, std::int64_t row) {
  if (side == Side::q) return place_of_q_row(p, view, s, head, row);
  if (paged(p)) {
    const TensorView& table = p.params.paged.block_table;
    const std::int64_t page_size = view.shape[1];
    const std::int64_t listed =
        load_integer(table, s.batch * table.strides[0] + row / page_size * table.strides[1]);
    const std::int64_t page = std::clamp(listed, std::int64_t{0}, view.shape[0] - 1);
    return {page * view.strides[0] + row % page_size * view.strides[1] + head * view.strides[2],
            view.strides[3]};
  }
  if (packed_k(p))
    return {(s.k_begin + row) * view.strides[0] + head * view.strides[1], view.strides[2]};
  return {s.batch * view.strides[0] + head * view.strides[1] + row * view.strides[2],
          view.strides[3]};
}

template <class Arithmetic>
void load_row(const Problem& p, const Arithmetic& arithmetic, Side side, const Sequence& s,
              std::int64_t head, std::int64_t row, typename Arithmetic::Real* to) {
  using Real = typename Arithmetic::Real;
  const Operand& operand = operand_of(p, side);
  const SegmentRow at = find_row(operand, row);
  const auto& segment = operand.segments[at.segment];
  const RowPlace place = place_of(p, side, segment.tensor, s, head, at.row);
  const std::int64_t dim = side == Side::v ? p.v_head_dim : p.head_dim;
  for (std::int64_t d = 0; d < dim; ++d)
    to[d] = static_cast<Real>(load(segment.tensor, place.offset + d * place.step));
  if (normalised(p, side))
    normalise(dim, p.params.qk_norm.eps, norm_weights(segment.norm_weight), to);
  if (rotated(p, side)) rotate(rotation_at(p, side, s.batch, row), false, to);
  for (std::int64_t d = 0; d < dim; ++d) {
    const double rounded = round_to(p.compute, static_cast<double>(to[d]));
    to[d] = arithmetic.operand(static_cast<Real>(rounded));
  }
}

template <class Arithmetic>
void store_gradient(const Problem& p, Side side, const Sequence& s, std::int64_t head,
                    std::int64_t row, typename Arithmetic::Real* gradient,
                    typename Arithmetic::Real* scratch, Accumulator<Arithmetic>& dweights) {
  using Real = typename Arithmetic::Real;
  const Operand& operand = operand_of(p, side);
  const SegmentRow at = find_row(operand, row);
  const auto& segment = operand.segments[at.segment];
  const MutableOperand& wanted = side == Side::q ? p.dq : side == Side::k ? p.dk : p.dv;
  const auto& to = wanted.segments[at.segment];
  const std::int64_t dim = side == Side::v ? p.v_head_dim : p.head_dim;
  // A row that nobody sees may hold NaN, which 0 * x would carry into its gradient.
  const bool zero = std::all_of(gradient, gradient + dim, [](Real g) { return g == 0; });
  if (!zero && rotated(p, side)) rotate(rotation_at(p, side, s.batch, row), true, gradient);
  if (!zero && normalised(p, side)) {
    Real *x = scratch, *terms = scratch + dim;
    const RowPlace place = place_of(p, side, segment.tensor, s, head, at.row);
    for (std::int64_t d = 0; d < dim; ++d)
      x[d] = static_cast<Real>(load(segment.tensor, place.offset + d * place.step));
    reverse_normalise(x, dim, p.params.qk_norm.eps, norm_weights(segment.norm_weight), gradient,
                      terms);
    dweights.add(at.segment, row, Real{1}, terms);
  }
  if (!to.tensor.present()) return;
  const RowPlace place = place_of(p, side, to.tensor, s, head, at.row);
  for (std::int64_t d = 0; d < dim; ++d)
    store(to.tensor, place.offset + d * place.step, static_cast<double>(gradient[d]));
}

template void load_row(const Problem&, const Exact&, Side, const Sequence&, std::int64_t,
                       std::int64_t, double*);
template void load_row(const Problem&, const Unfused&, Side, const Sequence&, std::int64_t,
                       std::int64_t, float*);
template void store_gradient(const Problem&, Side, const Sequence&, std::int64_t, std::int64_t,
                             double*, double*, Accumulator<Exact>&);
template void store_gradient(const Problem&, Side, const Sequence&, std::int64_t, std::int64_t,
                             float*, float*, Accumulator<Unfused>&);

}  // namespace fovea::reference
