// Walks over every tensor view of a call, so that checks, comparisons and rebinding see all of
// them.
#pragma once

#include <cstddef>

#include <fovea/attention.h>

#include "contract/problem.h"

namespace fovea {

/// What a view is to the call.
enum class Role : std::uint8_t { input, output };

/// Views of the largest call: backward's 8 operands in segments with their weights, and 18 others.
inline constexpr std::size_t kMaxViews = 8 * kMaxSegments * 2 + 18;

namespace detail {

template <class Operands, class F>
void visit_operand(Operands& operand, const char* name, const char* weight_name, Role role, F&& f) {
  const int count = operand.count < kMaxSegments ? operand.count : kMaxSegments;
  for (int n = 0; n < count; ++n) {
    f(operand.segments[n].tensor, name, role);
    f(operand.segments[n].norm_weight, weight_name, role);
  }
}

}  // namespace detail

/// f(view, name, role) for each view of the parameters, present or not, in a fixed order.
template <class Params, class F>
void visit_params(Params& p, F&& f) {
  detail::visit_operand(p.q, "q", "q norm_weight", Role::input, f);
  detail::visit_operand(p.k, "k", "k norm_weight", Role::input, f);
  detail::visit_operand(p.v, "v", "v norm_weight", Role::input, f);
  f(p.mask, "mask", Role::input);
  f(p.alibi.slopes, "alibi slopes", Role::input);
  f(p.sinks, "sinks", Role::input);
  f(p.dropout.seed_tensor, "dropout seed_tensor", Role::input);
  f(p.dropout.offset_tensor, "dropout offset_tensor", Role::input);
  f(p.dropout.streams, "dropout streams", Role::input);
  f(p.varlen.cu_seqlens_q, "cu_seqlens_q", Role::input);
  f(p.varlen.cu_seqlens_k, "cu_seqlens_k", Role::input);
  f(p.seqused_k, "seqused_k", Role::input);
  f(p.paged.block_table, "block_table", Role::input);
  f(p.rope.cos, "rope cos", Role::input);
  f(p.rope.sin, "rope sin", Role::input);
  f(p.rope.q_offsets, "rope q_offsets", Role::input);
  f(p.rope.k_offsets, "rope k_offsets", Role::input);
}

template <class F>
void visit_views(const ForwardArgs& a, F&& f) {
  visit_params(a.params, f);
  detail::visit_operand(a.out, "out", "out norm_weight", Role::output, f);
  f(a.lse, "lse", Role::output);
}

template <class F>
void visit_views(const BackwardArgs& a, F&& f) {
  visit_params(a.params, f);
  detail::visit_operand(a.out, "out", "out norm_weight", Role::input, f);
  f(a.lse, "lse", Role::input);
  detail::visit_operand(a.dout, "dout", "dout norm_weight", Role::input, f);
  f(a.dlse, "dlse", Role::input);
  detail::visit_operand(a.dq, "dq", "dq norm_weight", Role::output, f);
  detail::visit_operand(a.dk, "dk", "dk norm_weight", Role::output, f);
  detail::visit_operand(a.dv, "dv", "dv norm_weight", Role::output, f);
  f(a.dmask, "dmask", Role::output);
  f(a.dsinks, "dsinks", Role::output);
}

/// The same views of a Problem, in the same order as those of the arguments it was made from.
template <class P, class F>
void visit_problem(P& p, F&& f) {
  visit_params(p.params, f);
  if (p.direction == Direction::forward) {
    detail::visit_operand(p.out_segments, "out", "out norm_weight", Role::output, f);
    f(p.lse, "lse", Role::output);
    return;
  }
  detail::visit_operand(p.saved_out_segments, "out", "out norm_weight", Role::input, f);
  f(p.saved_lse, "lse", Role::input);
  detail::visit_operand(p.dout_segments, "dout", "dout norm_weight", Role::input, f);
  f(p.dlse, "dlse", Role::input);
  detail::visit_operand(p.dq, "dq", "dq norm_weight", Role::output, f);
  detail::visit_operand(p.dk, "dk", "dk norm_weight", Role::output, f);
  detail::visit_operand(p.dv, "dv", "dv norm_weight", Role::output, f);
  f(p.dmask, "dmask", Role::output);
  f(p.dsinks, "dsinks", Role::output);
}

}  // namespace fovea
