#include "core/validate.h"

#include <algorithm>
#include <array>
#include <bit>

#include "core/memory.h"
#include "core/status_macros.h"
#include "core/validate_parts.h"
#include "core/views.h"

namespace fovea {
namespace {

using namespace validation;

/// Strides of dimensions of size 1 carry no meaning: give them one value.
template <class View>
void normalise_strides(View& view) {
  for (int d = 0; d < view.rank; ++d) {
    const auto n = static_cast<std::size_t>(d);
    if (view.shape[n] == 1) view.strides[n] = d == view.rank - 1 ? 1 : 0;
  }
}

void first_segments(Problem& problem) {
  problem.out = problem.out_segments.segments[0].tensor;
  problem.saved_out = problem.saved_out_segments.segments[0].tensor;
  problem.dout = problem.dout_segments.segments[0].tensor;
}

/// Every view that is given can be measured, used or not: check_memory measures them all.
Status check_layouts(const Context& context) {
  Status status;
  visit_problem(context.problem, [&](const TensorView& view, const char* name, Role) {
    if (status.ok() && view.present())
      status = check_layout(context.where, name, view, 0, kMaxRank);
  });
  return status;
}

Status check_all(Context& context) {
  FOVEA_RETURN_IF_ERROR(check_layouts(context));
  FOVEA_RETURN_IF_ERROR(check_operands(context));
  FOVEA_RETURN_IF_ERROR(check_dtypes(context));
  FOVEA_RETURN_IF_ERROR(check_scores(context));
  FOVEA_RETURN_IF_ERROR(check_dropout(context));
  FOVEA_RETURN_IF_ERROR(check_prologue(context));
  FOVEA_RETURN_IF_ERROR(context.problem.direction == Direction::forward
                            ? check_forward_results(context)
                            : check_gradients(context));
  return check_memory(context.where, context.problem);
}

Result<Problem> finish(Problem problem) {
  Context context{problem, name_of(problem.direction)};
  if (Status status = check_all(context); !status.ok()) return status;
  visit_problem(problem, [](auto& view, const char*, Role) { normalise_strides(view); });
  first_segments(problem);
  return problem;
}

/// Everything of the parameters that is not a view and must not change between plan and run.
/// `f(value, name)` for each.
template <class F>
void visit_scalars(const AttentionParams& a, F&& f) {
  f(static_cast<std::int64_t>(a.scale.has_value()), "scale");
  f(a.scale.value_or(0), "scale");
  f(static_cast<std::int64_t>(a.band ? static_cast<int>(a.band->anchor) : 0), "band");
  f(a.band ? a.band->left : 0, "band");
  f(a.band ? a.band->right : 0, "band");
  f(static_cast<std::int64_t>(a.alibi.slopes.present() ? static_cast<int>(a.alibi.anchor) : 0),
    "alibi anchor");
  f(a.softcap, "softcap");
  f(a.dropout.probability, "dropout probability");
  f(a.dropout.row_origin, "dropout row_origin");
  f(a.dropout.column_origin, "dropout column_origin");
  f(a.varlen.max_q_len, "max_q_len");
  f(a.varlen.max_kv_len, "max_kv_len");
  f(a.paged.max_kv_len, "paged max_kv_len");
  f(static_cast<std::int64_t>(a.qk_norm.enabled), "qk_norm");
  f(a.qk_norm.eps, "qk_norm eps");
  f(static_cast<std::int64_t>(a.rope.style), "rope style");
  f(static_cast<std::int64_t>(a.rope.table), "rope table");
  f(a.rope.rotary_dim, "rotary_dim");
  f(static_cast<std::int64_t>(a.rope.rotate_q), "rotate_q");
  f(static_cast<std::int64_t>(a.rope.rotate_k), "rotate_k");
  f(static_cast<std::int64_t>(a.dtype_policy.compute), "dtype_policy");
  f(static_cast<std::int64_t>(a.f32_precision), "f32_precision");
  f(static_cast<std::int64_t>(a.quantization.dtype), "quantization");
  f(static_cast<std::int64_t>(a.quantization.block), "quantization");
  f(static_cast<std::int64_t>(a.q.count), "q segments");
  f(static_cast<std::int64_t>(a.k.count), "k segments");
  f(static_cast<std::int64_t>(a.v.count), "v segments");
}

std::uint64_t bits_of(double value) { return std::bit_cast<std::uint64_t>(value); }
std::uint64_t bits_of(std::int64_t value) { return static_cast<std::uint64_t>(value); }

/// Feeds sink(word, name) with everything that a plan fixes.
template <class Args, class Sink>
void visit_structure(const Args& args, Sink&& sink) {
  visit_scalars(args.params, [&](auto value, const char* name) { sink(bits_of(value), name); });
  sink(bits_of(static_cast<std::int64_t>(args.out.count)), "out segments");
  if constexpr (std::is_same_v<Args, BackwardArgs>) {
    sink(bits_of(static_cast<std::int64_t>(args.dout.count)), "dout segments");
    sink(bits_of(static_cast<std::int64_t>(args.dq.count)), "dq segments");
    sink(bits_of(static_cast<std::int64_t>(args.dk.count)), "dk segments");
    sink(bits_of(static_cast<std::int64_t>(args.dv.count)), "dv segments");
  }
  visit_views(args, [&](const TensorView& view, const char* name, Role) {
    sink(static_cast<std::uint64_t>(view.dtype) |
             static_cast<std::uint64_t>(static_cast<std::uint32_t>(view.rank)) << 8 |
             static_cast<std::uint64_t>(view.device.type) << 40 |
             static_cast<std::uint64_t>(static_cast<std::uint32_t>(view.device.index)) << 44,
         name);
    for (int d = 0; d < view.rank && d < kMaxRank; ++d) {
      const auto n = static_cast<std::size_t>(d);
      sink(bits_of(view.shape[n]), name);
      sink(bits_of(view.shape[n] == 1 ? 0 : view.strides[n]), name);
    }
  });
}

template <class Args>
Structure structure_of_any(const Args& args) {
  Structure structure;
  visit_structure(args, [&](std::uint64_t word, const char*) { structure.push_back(word); });
  return structure;
}

template <class Args>
Status check_structure_of(const Structure& planned, const Args& args, const char* where) {
  std::size_t next = 0;
  const char* differs = nullptr;
  visit_structure(args, [&](std::uint64_t word, const char* name) {
    if (differs == nullptr && (next == planned.size() || planned[next] != word)) differs = name;
    if (differs == nullptr) ++next;
  });
  if (differs == nullptr && next == planned.size()) return {};
  return {StatusCode::invalid, std::string("[") + where + "] " +
                                   (differs == nullptr ? "arguments" : differs) +
                                   " differs from what the plan was made for; make a new plan"};
}

template <class Args>
Status rebind_any(Problem& problem, const Args& args, const char* where) {
  std::array<const void*, kMaxViews> pointers;
  std::size_t count = 0;
  visit_views(args,
              [&](const TensorView& view, const char*, Role) { pointers[count++] = view.data; });
  std::size_t next = 0;
  visit_problem(problem, [&](auto& view, const char*, Role) {
    view.data = const_cast<void*>(pointers[next++]);  // NOLINT: outputs were given as void*
  });
  first_segments(problem);
  problem.mask4.data = problem.params.mask.data;
  problem.dmask4.data = problem.dmask.data;
  problem.params.dropout.seed = args.params.dropout.seed;
  problem.params.dropout.offset = args.params.dropout.offset;
  problem.params.rope.q_offset = args.params.rope.q_offset;
  problem.params.rope.k_offset = args.params.rope.k_offset;
  if (problem.features.has(Feature::dropout))
    FOVEA_RETURN_IF_ERROR(check_dropout_range(where, problem));
  if (problem.features.has(Feature::rope)) FOVEA_RETURN_IF_ERROR(check_rope_rows(where, problem));
  return check_memory(where, problem);
}

template <class Args>
std::uint64_t hash_of(const Args& args) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  visit_structure(args, [&](std::uint64_t word, const char*) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  });
  return hash;
}

}  // namespace

Result<Problem> validate(const ForwardArgs& args, bool deterministic) {
  Problem problem;
  problem.direction = Direction::forward;
  problem.deterministic = deterministic;
  problem.params = args.params;
  problem.out_segments = args.out;
  problem.lse = args.lse;
  return finish(std::move(problem));
}

Result<Problem> validate(const BackwardArgs& args, bool deterministic) {
  Problem problem;
  problem.direction = Direction::backward;
  problem.deterministic = deterministic;
  problem.params = args.params;
  problem.saved_out_segments = args.out;
  problem.saved_lse = args.lse;
  problem.dout_segments = args.dout;
  problem.dlse = args.dlse;
  problem.dq = args.dq;
  problem.dk = args.dk;
  problem.dv = args.dv;
  problem.dmask = args.dmask;
  problem.dsinks = args.dsinks;
  return finish(std::move(problem));
}

Structure structure_of(const ForwardArgs& args) { return structure_of_any(args); }
Structure structure_of(const BackwardArgs& args) { return structure_of_any(args); }

Status check_structure(const Structure& planned, const ForwardArgs& args) {
  return check_structure_of(planned, args, "forward");
}
Status check_structure(const Structure& planned, const BackwardArgs& args) {
  return check_structure_of(planned, args, "backward");
}

Status rebind(Problem& problem, const ForwardArgs& args) {
  return rebind_any(problem, args, "forward");
}
Status rebind(Problem& problem, const BackwardArgs& args) {
  return rebind_any(problem, args, "backward");
}

std::uint64_t structure_hash(const ForwardArgs& args) { return hash_of(args); }
std::uint64_t structure_hash(const BackwardArgs& args) { return hash_of(args); }

}  // namespace fovea
