// The visible keys of one row, their scores and their dropout factors.
//
//   s(i,j)  = softcap(scale q^_i.k^_j) + mask(i,j) - slope |i + o - j|, raised to -FLT_MAX/log2(e)
//             where finite
//   p(i,j)  = exp(s(i,j) - lse_i),  lse_i = log(sum_visible exp s(i,j) + [exp sink])
//
// Only visible keys enter the lists, so that nothing of a hidden key can reach a result.
#pragma once

#include <cstdint>
#include <limits>

#include "contract/band.h"
#include "contract/problem.h"
#include "contract/reference_formulas.h"
#include "cpu/reference_arithmetic.h"
#include "cpu/reference_operands.h"

namespace fovea::reference {

/// What one (sequence, query head) shares between its rows.
struct HeadScores {
  HeadScores(const Problem& problem, const Sequence& sequence, std::int64_t head);

  const Problem& problem;
  Sequence sequence;
  std::int64_t head;
  ResolvedBand band;
  double slope = 0;               ///< ALiBi
  std::int64_t alibi_offset = 0;  ///< o of the ALiBi term
  bool has_sink = false;
  double sink = -std::numeric_limits<double>::infinity();
  DropFactors drop;
};

/// One row's visible keys in ascending order; arrays of kv_len.
template <class Real>
struct Row {
  Row(Arena& arena, std::int64_t kv_len)
      : key(arena.take<std::int64_t>(kv_len)),
        score(arena.take<Real>(kv_len)),
        softcap_slope(arena.take<Real>(kv_len)),
        probability(arena.take<Real>(kv_len)),
        drop(arena.take<Real>(kv_len)) {}

  std::int64_t count = 0;
  std::int64_t* key;
  Real* score;
  Real* softcap_slope;  ///< d softcap(x) / dx
  Real* probability;
  Real* drop;  ///< 0, or the factor of what is kept
  Real lse = 0;
};

/// Offset of element (b, h, i, j) in a view broadcast to four dimensions.
inline std::int64_t place_of_mask(const TensorView& mask4, std::int64_t b, std::int64_t h,
                                  std::int64_t i, std::int64_t j) {
  return b * mask4.strides[0] + h * mask4.strides[1] + i * mask4.strides[2] + j * mask4.strides[3];
}

/// Fills `row` for query i, whose operand row is q; k holds the sequence's rows [kv_len, head_dim].
template <class Arithmetic>
void evaluate_row(const HeadScores& head, const Arithmetic& arithmetic, std::int64_t i,
                  const typename Arithmetic::Real* q, const typename Arithmetic::Real* k,
                  Row<typename Arithmetic::Real>& row);

}  // namespace fovea::reference
