// Backward, evaluated as the formulas are written, in either arithmetic.
//
//   dp(i,j)  = drop(i,j) dout_i.v^_j
//   delta_i  = sum_j p(i,j) dp(i,j)              which is dout_i.out_i, without out_i
//   ds(i,j)  = p(i,j) (dp(i,j) - delta_i + dlse_i)
//   dmask    = ds, summed over the dimensions that the mask is broadcast over
//   dq^_i    = scale sum_j ds(i,j) softcap'(i,j) k^_j,   dk^_j = scale sum_i ds softcap' q^_i
//   dv_j     = sum_i p(i,j) drop(i,j) dout_i
//   dsink    = sum_i exp(sink - lse_i) (dlse_i - delta_i)
//   dq, dk and the norm weights' gradients follow from dq^, dk^ (reference_operands.h)
//
// The oracle computes lse and p anew from the operands and reads nothing that forward saved: its
// results are the gradients of the function itself, not of an evaluation of it. The yardstick takes
// the lse that it is given, an f32 number, as every backward of this contract must.
//
// Shapes as in reference_forward.h; gradients have their inputs' shapes. One worker owns one
// (sequence, KV head). Sums over heads and sequences (norm weights, sinks) are kept apart by unit
// and added in order afterwards; the mask's gradient, which any two units may share, is computed by
// one worker. Scratch O(kv_len head_dim) a worker, and f64 sums of the shared gradients.
#pragma once

#include <cmath>

#include <fovea/status.h>

#include "cpu/reference_forward.h"

namespace fovea::reference {

/// Sums that several units contribute to; null where not wanted.
struct SharedSums {
  SharedSums(Arena& arena, const Problem& p);

  double* dq_weights;  ///< [units, kMaxSegments, head_dim]
  double* dk_weights;  ///< [units, kMaxSegments, head_dim]
  double* dsinks;      ///< [units, group]
  double* dmask;       ///< the mask's own elements, row-major
  std::int64_t mask_sizes[4];
};

/// Adds up the units' sums and writes the gradients that are wanted.
void store_shared_gradients(const Problem& problem, const SharedSums& sums);

/// One worker's arrays.
template <class Arithmetic>
struct BackwardScratch : ForwardScratch<Arithmetic> {
  using Real = typename Arithmetic::Real;
  BackwardScratch(Arena& arena, const Problem& p)
      : ForwardScratch<Arithmetic>(arena, p),
        dout(arena.take<Real>(p.v_head_dim)),
        dp(arena.take<Real>(p.kv_len)),
        gradient(arena.take<Real>(std::max(p.head_dim, p.v_head_dim))),
        prologue(arena.take<Real>(2 * p.head_dim)),
        dq(arena, 1, p.head_dim),
        dk(arena, p.kv_len, p.head_dim),
        dv(arena, p.kv_len, p.v_head_dim),
        dq_weights(arena, kMaxSegments, p.head_dim),
        dk_weights(arena, kMaxSegments, p.head_dim) {}

  Real* dout;      ///< [v_head_dim]
  Real* dp;        ///< [kv_len], of the row's visible keys
  Real* gradient;  ///< [max(head_dim, v_head_dim)]
  Real* prologue;  ///< [2, head_dim]
  Accumulator<Arithmetic> dq, dk, dv, dq_weights, dk_weights;
};

template <class Arithmetic>
std::size_t backward_workspace(const Problem& problem, int threads) {
  Arena arena(nullptr);
  SharedSums(arena, problem);
  for (int worker = 0; worker < threads; ++worker) BackwardScratch<Arithmetic>(arena, problem);
  return arena.used();
}

/// p from the lse that forward saved.
template <class Real>
void take_saved_lse(const HeadScores& head, std::int64_t i, Row<Real>& row) {
  const TensorView& lse = head.problem.saved_lse;
  row.lse =
      static_cast<Real>(load(lse, place_of_lse(head.problem, lse, head.sequence, head.head, i)));
  for (std::int64_t n = 0; n < row.count; ++n)
    row.probability[n] = std::exp(row.score[n] - row.lse);
}

/// Row i of one head: adds to dk, dv and the shared sums, writes dq.
template <class Arithmetic>
void backward_row(const HeadScores& head, const Arithmetic& arithmetic, std::int64_t i,
                  BackwardScratch<Arithmetic>& scratch, const SharedSums& sums, double& dsink) {
  using Real = typename Arithmetic::Real;
  const Problem& p = head.problem;
  const Sequence& sequence = head.sequence;
  Row<Real>& row = scratch.row;
  load_row(p, arithmetic, Side::q, sequence, head.head, i, scratch.q);
  evaluate_row(head, arithmetic, i, scratch.q, scratch.k, row);
  if constexpr (Arithmetic::kReadsSavedLse) take_saved_lse(head, i, row);
  if (std::isinf(row.lse) && row.lse < 0) row.count = 0;  // every p is 0

  const SegmentRow at = find_row(p.dout_segments, i);
  const TensorView& dout = p.dout_segments.segments[at.segment].tensor;
  const RowPlace place = place_of_q_row(p, dout, sequence, head.head, at.row);
  for (std::int64_t d = 0; d < p.v_head_dim; ++d)
    scratch.dout[d] =
        arithmetic.operand(static_cast<Real>(load(dout, place.offset + d * place.step)));
  Real dlse = 0;
  if (p.dlse.present())
    dlse = static_cast<Real>(load(p.dlse, place_of_lse(p, p.dlse, sequence, head.head, i)));

  for (std::int64_t n = 0; n < row.count; ++n) {
    const Real* v = scratch.v + row.key[n] * p.v_head_dim;
    const Real product = arithmetic.stored(dot(scratch.dout, v, p.v_head_dim));
    scratch.dp[n] = arithmetic.stored(product * row.drop[n]);
    row.probability[n] = arithmetic.stored(row.probability[n]);
  }
  const Real delta = dot(row.probability, scratch.dp, row.count);
  if (head.has_sink)
    dsink += static_cast<double>(sink_gradient(static_cast<Real>(head.sink), row.lse, delta, dlse));

  scratch.dq.clear();
  const std::int64_t term = head.head % p.group() * sequence.q_len + i;
  for (std::int64_t n = 0; n < row.count; ++n) {
    const std::int64_t j = row.key[n];
    const Real ds =
        arithmetic.stored(score_gradient(row.probability[n], scratch.dp[n], delta, dlse));
    if (sums.dmask != nullptr) {
      const std::int64_t index[4] = {sequence.batch, head.head, i, j};
      std::int64_t element = 0;
      for (int d = 0; d < 4; ++d)
        element = element * sums.mask_sizes[d] + (sums.mask_sizes[d] == 1 ? 0 : index[d]);
      sums.dmask[element] += static_cast<double>(ds);
    }
    const Real dx = arithmetic.operand(ds * row.softcap_slope[n]);
    scratch.dq.add(0, n, dx, scratch.k + j * p.head_dim);
    scratch.dk.add(j, term, dx, scratch.q);
    scratch.dv.add(j, term, arithmetic.operand(row.probability[n] * row.drop[n]), scratch.dout);
  }
  for (std::int64_t d = 0; d < p.head_dim; ++d)
    scratch.gradient[d] = static_cast<Real>(p.scale) * scratch.dq.total(0, d);
  store_gradient(p, Side::q, sequence, head.head, i, scratch.gradient, scratch.prologue,
                 scratch.dq_weights);
}

template <class Arithmetic>
void backward_unit(const Problem& p, const Arithmetic& arithmetic, std::int64_t index, Unit unit,
                   BackwardScratch<Arithmetic>& scratch, const SharedSums& sums) {
  using Real = typename Arithmetic::Real;
  const Sequence sequence = sequence_of(p, unit.batch);
  load_keys_and_values(p, arithmetic, sequence, unit.kv_head, scratch.k, scratch.v);
  for (auto* sum : {&scratch.dk, &scratch.dv, &scratch.dq_weights, &scratch.dk_weights})
    sum->clear();

  for (std::int64_t g = 0; g < p.group(); ++g) {
    const HeadScores head(p, sequence, unit.kv_head * p.group() + g);
    double dsink = 0;
    for (std::int64_t i = 0; i < sequence.q_len; ++i)
      backward_row(head, arithmetic, i, scratch, sums, dsink);
    if (sums.dsinks != nullptr) sums.dsinks[index * p.group() + g] = dsink;
  }

  for (std::int64_t j = 0; j < sequence.kv_capacity; ++j) {
    const bool used = j < sequence.kv_len;
    for (std::int64_t d = 0; d < p.head_dim; ++d)
      scratch.gradient[d] = used ? static_cast<Real>(p.scale) * scratch.dk.total(j, d) : Real{0};
    store_gradient(p, Side::k, sequence, unit.kv_head, j, scratch.gradient, scratch.prologue,
                   scratch.dk_weights);
    for (std::int64_t d = 0; d < p.v_head_dim; ++d)
      scratch.gradient[d] = used ? scratch.dv.total(j, d) : Real{0};
    store_gradient(p, Side::v, sequence, unit.kv_head, j, scratch.gradient, scratch.prologue,
                   scratch.dk_weights);
  }

  const auto keep = [&](double* to, const Accumulator<Arithmetic>& from) {
    if (to == nullptr) return;
    for (std::int64_t s = 0; s < kMaxSegments; ++s)
      for (std::int64_t d = 0; d < p.head_dim; ++d)
        to[(index * kMaxSegments + s) * p.head_dim + d] = static_cast<double>(from.total(s, d));
  };
  keep(sums.dq_weights, scratch.dq_weights);
  keep(sums.dk_weights, scratch.dk_weights);
}

template <class Arithmetic>
Status backward_run(const Problem& problem, const Launch& launch) {
  const Arithmetic arithmetic(problem);
  Arena shared(launch.workspace);
  const SharedSums sums(shared, problem);
  if (sums.dmask != nullptr) {
    std::int64_t elements = 1;
    for (const std::int64_t size : sums.mask_sizes) elements *= size;
    std::fill_n(sums.dmask, elements, 0.0);
  }

  const ThreadPool one_worker = ThreadPool::inline_calls();
  const std::size_t stride =
      backward_workspace<Arithmetic>(problem, 1) - backward_workspace<Arithmetic>(problem, 0);
  for_each_unit(
      problem, sums.dmask != nullptr ? one_worker : *launch.pool,
      [&](int worker, std::int64_t index, Unit unit) {
        Arena arena(launch.workspace + shared.used() + static_cast<std::size_t>(worker) * stride);
        BackwardScratch<Arithmetic> scratch(arena, problem);
        backward_unit(problem, arithmetic, index, unit, scratch, sums);
      });
  store_shared_gradients(problem, sums);
  return {};
}

}  // namespace fovea::reference
