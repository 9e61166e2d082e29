// Rows of the operands as the products read them, and the way back for their gradients.
//
//   x        one row of q, k or v as it came in, in its segment's dtype
//   y  = x / sqrt(mean(x^2) + eps) * w              QK-norm, q and k only
//   x^ = R y:  a' = a cos - b sin, b' = a sin + b cos for each pair (a, b)    RoPE, q and k only
//   x^ is rounded once to the compute dtype: that rounding is part of the function (each input is
//   read in its own dtype), so the oracle has it as well. It rounds the exact value; a kernel whose
//   f32 prologue lands on the other side of a rounding boundary errs by one unit in few elements,
//   which its tolerance allows. Gradients pass the rounding unchanged.
//
//   back:  dy = R^T dx^: a = a' cos + b' sin, b = b' cos - a' sin   (tables may carry a scale)
//          dx = r (w dy) - x r^3 / D sum_d(x w dy),  dw += dy x r,  r = 1 / sqrt(mean(x^2) + eps)
#pragma once

#include <cstdint>

#include "contract/problem.h"
#include "cpu/reference_arithmetic.h"

namespace fovea::reference {

/// The rows that one sequence of the batch owns.
struct Sequence {
  std::int64_t batch = 0;
  std::int64_t q_begin = 0, q_len = 0;  ///< q_begin: first row in packed tensors, else 0
  std::int64_t k_begin = 0, kv_len = 0;
  std::int64_t kv_capacity = 0;  ///< rows of k and v that belong to it, used or not
};

/// Lengths of sequence b. Values read from tensors are clamped to the tensors and the maxima, and
/// no two sequences share a row.
Sequence sequence_of(const Problem& problem, std::int64_t b);

/// Where a row begins, and from one of its elements to the next; in elements.
struct RowPlace {
  std::int64_t offset = 0, step = 1;
};

/// Row i of head h in a tensor laid out like q or out: [batch, heads, q_len, dim] or packed.
RowPlace place_of_q_row(const Problem& problem, const TensorView& view, const Sequence& sequence,
                        std::int64_t head, std::int64_t row);
/// Element (h, i) of a tensor laid out like lse: [batch, q_heads, q_len] or packed.
std::int64_t place_of_lse(const Problem& problem, const TensorView& view, const Sequence& sequence,
                          std::int64_t head, std::int64_t row);

enum class Side { q, k, v };

/// A row of an operand or result: which segment holds it, and which of the segment's rows it is.
struct SegmentRow {
  int segment = 0;
  std::int64_t row = 0;
};
template <class View>
SegmentRow find_row(const BasicOperand<View>& operand, std::int64_t row) {
  SegmentRow found{0, row};
  while (found.segment + 1 < operand.count) {
    const std::int64_t rows = operand.segments[found.segment].tensor.shape[2];
    if (found.row < rows) break;
    found.row -= rows;
    ++found.segment;
  }
  return found;
}

/// `view`: the segment's tensor or its gradient.
RowPlace place_of(const Problem& problem, Side side, const TensorView& view,
                  const Sequence& sequence, std::int64_t head, std::int64_t row);

/// Reads row `row` of head `head` through the prologue into to[0, dim).
template <class Arithmetic>
void load_row(const Problem& problem, const Arithmetic& arithmetic, Side side,
              const Sequence& sequence, std::int64_t head, std::int64_t row,
              typename Arithmetic::Real* to);

/// Takes the gradient of what load_row returned back through the prologue and writes it where it is
/// wanted. The way back is linear: a gradient of zeros stays zero, and the row is then not read.
/// `gradient` is overwritten, `scratch` holds 2 * head_dim values. Under QK-norm the weight's
/// gradient is added to row `segment` of `dweights`.
template <class Arithmetic>
void store_gradient(const Problem& problem, Side side, const Sequence& sequence, std::int64_t head,
                    std::int64_t row, typename Arithmetic::Real* gradient,
                    typename Arithmetic::Real* scratch, Accumulator<Arithmetic>& dweights);

}  // namespace fovea::reference
