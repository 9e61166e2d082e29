// Forward, evaluated as the formulas are written, in either arithmetic.
//
//   lse_i = log(sum_visible exp s(i,j) + [exp sink]),  out_i = sum_j p(i,j) drop(i,j) v^_j
//
//   q [batch, q_heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim],
//   v [batch, kv_heads, kv_len, v_head_dim] -> out [batch, q_heads, q_len, v_head_dim],
//   lse [batch, q_heads, q_len]; packed and paged layouts as the contract has them
//
// One worker owns one (sequence, KV head): it reads k and v once through the prologue, then walks
// the rows of the group's query heads. Time O(q_len kv_len head_dim) a head, scratch
// O(kv_len head_dim) a worker.
#pragma once

#include <fovea/status.h>

#include "contract/kernel.h"
#include "cpu/reference_scores.h"
#include "cpu/reference_units.h"

namespace fovea::reference {

/// One worker's arrays.
template <class Arithmetic>
struct ForwardScratch {
  using Real = typename Arithmetic::Real;
  ForwardScratch(Arena& arena, const Problem& p)
      : q(arena.take<Real>(p.head_dim)),
        k(arena.take<Real>(p.kv_len, p.head_dim)),
        v(arena.take<Real>(p.kv_len, p.v_head_dim)),
        row(arena, p.kv_len),
        out(arena, 1, p.v_head_dim) {}

  Real* q;  ///< [head_dim]
  Real* k;  ///< [kv_len, head_dim]
  Real* v;  ///< [kv_len, v_head_dim]
  Row<Real> row;
  Accumulator<Arithmetic> out;
};

template <class Arithmetic>
std::size_t forward_workspace(const Problem& problem, int threads) {
  Arena arena(nullptr);
  for (int worker = 0; worker < threads; ++worker) ForwardScratch<Arithmetic>(arena, problem);
  return arena.used();
}

/// k and v of one unit through the prologue.
template <class Arithmetic>
void load_keys_and_values(const Problem& p, const Arithmetic& arithmetic, const Sequence& sequence,
                          std::int64_t kv_head, typename Arithmetic::Real* k,
                          typename Arithmetic::Real* v) {
  for (std::int64_t j = 0; j < sequence.kv_len; ++j) {
    load_row(p, arithmetic, Side::k, sequence, kv_head, j, k + j * p.head_dim);
    load_row(p, arithmetic, Side::v, sequence, kv_head, j, v + j * p.v_head_dim);
  }
}

template <class Arithmetic>
void forward_unit(const Problem& p, const Arithmetic& arithmetic, Unit unit,
                  ForwardScratch<Arithmetic>& scratch) {
  using Real = typename Arithmetic::Real;
  const Sequence sequence = sequence_of(p, unit.batch);
  load_keys_and_values(p, arithmetic, sequence, unit.kv_head, scratch.k, scratch.v);
  Row<Real>& row = scratch.row;
  for (std::int64_t h = unit.kv_head * p.group(); h < (unit.kv_head + 1) * p.group(); ++h) {
    const HeadScores head(p, sequence, h);
    for (std::int64_t i = 0; i < sequence.q_len; ++i) {
      load_row(p, arithmetic, Side::q, sequence, h, i, scratch.q);
      evaluate_row(head, arithmetic, i, scratch.q, scratch.k, row);

      scratch.out.clear();
      for (std::int64_t n = 0; n < row.count; ++n) {
        const Real weight = arithmetic.operand(arithmetic.stored(row.probability[n]) * row.drop[n]);
        scratch.out.add(0, n, weight, scratch.v + row.key[n] * p.v_head_dim);
      }
      const SegmentRow at = find_row(p.out_segments, i);
      const MutableTensorView& out = p.out_segments.segments[at.segment].tensor;
      const RowPlace place = place_of_q_row(p, out, sequence, h, at.row);
      for (std::int64_t d = 0; d < p.v_head_dim; ++d)
        store(out, place.offset + d * place.step, static_cast<double>(scratch.out.total(0, d)));
      if (p.lse.present())
        store(p.lse, place_of_lse(p, p.lse, sequence, h, i), static_cast<double>(row.lse));
    }
  }
}

template <class Arithmetic>
Status forward_run(const Problem& problem, const Launch& launch) {
  const Arithmetic arithmetic(problem);
  const std::size_t stride = forward_workspace<Arithmetic>(problem, 1);
  for_each_unit(problem, *launch.pool, [&](int worker, std::int64_t, Unit unit) {
    Arena arena(launch.workspace + static_cast<std::size_t>(worker) * stride);
    ForwardScratch<Arithmetic> scratch(arena, problem);
    forward_unit(problem, arithmetic, unit, scratch);
  });
  return {};
}

}  // namespace fovea::reference
