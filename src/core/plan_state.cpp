#include "core/plan_state.h"

#include <optional>

#include "contract/format.h"
#include "core/autotune.h"
#include "core/device_totals.h"
#include "core/devices.h"
#include "core/outstanding.h"
#include "core/replays.h"
#include "core/select.h"
#include "core/status_macros.h"
#include "core/stream_workspace.h"
#include "core/validate.h"
#include "core/workspace_pool.h"

namespace fovea {
namespace {

Status choose_pool(PlanState& plan, const PlanOptions& options) {
  const Backend* backend = find_backend(plan.problem.device.type);
  if (backend->pool == nullptr) return {};
  if (options.num_threads < 0)
    return {StatusCode::invalid, formatted("[{}] num_threads must be 0 or positive; got {}",
                                           name_of(plan.problem.direction), options.num_threads)};
  if (options.pool != nullptr) {
    if (options.pool->run == nullptr || options.pool->threads < 1)
      return {StatusCode::invalid,
              formatted("[{}] a ThreadPool needs run and at least one thread; got {} threads",
                        name_of(plan.problem.direction), options.pool->threads)};
    plan.pool = *options.pool;
    return {};
  }
  plan.pool =
      backend->pool(options.num_threads > 0 ? options.num_threads : backend->default_threads());
  return {};
}

proof::Subject subject_of(const Kernel& kernel, const Problem& problem) {
  std::string description = formatted("d{}", problem.head_dim);
  if (problem.v_head_dim != problem.head_dim) description += formatted(" dv{}", problem.v_head_dim);
  description += formatted(" {}", name_of(problem.compute));
  return {index_of(kernel), &kernel, std::move(description), device_name(problem.device)};
}

void describe(PlanState& plan, const Selection& selection) {
  Report& report = plan.report;
  report.kernel = plan.kernel->id;
  report.device = plan.problem.device;
  report.workspace_bytes = static_cast<std::int64_t>(plan.workspace_bytes);
  if (plan.kernel->staged_copies != nullptr)
    report.staged_copies = plan.kernel->staged_copies(plan.problem);
  report.fused_prologue =
      plan.problem.features.has(Feature::rope) || plan.problem.features.has(Feature::qk_norm);
  for (const Considered& c : selection.passed_over) {
    report.passed_over.push_back({c.kernel->id, render(c.refusal)});
    plan.refusals.push_back(&counting::refusals_of(kind_of(c.refusal)));
  }
  plan.subject = subject_of(*plan.kernel, plan.problem);
  if (const Considered* preferred = selection.preferred()) {
    report.fallback = true;
    plan.has_preferred = true;
    plan.preferred = subject_of(*preferred->kernel, plan.problem);
    plan.preferred_reason = render(preferred->refusal);
  }
}

template <class Args>
Result<std::shared_ptr<const PlanState>> make_any(const Args& args, const PlanOptions& options) {
  auto plan = std::make_shared<PlanState>();
  Result<Problem> problem = validate(args, options.deterministic);
  if (!problem.ok()) return problem.status();
  plan->problem = *problem;
  plan->structure = structure_of(args);
  FOVEA_RETURN_IF_ERROR(check_device(name_of(plan->problem.direction), plan->problem.device));
  plan->queue = queue_of(plan->problem.device);
  if (plan->queue != nullptr)
    FOVEA_RETURN_IF_ERROR(prepare_for_replays(*plan->queue, plan->problem.device.index));
  FOVEA_RETURN_IF_ERROR(choose_pool(*plan, options));
  Result<Selection> selection =
      select(plan->problem, effective_choice(options.choice), options.self_check);
  if (!selection.ok()) return selection.status();
  if (options.autotune)
    plan->report.tuned = tune(plan->problem, effective_choice(options.choice), options.self_check,
                              plan->pool, *selection);
  plan->kernel = selection->kernel;
  plan->workspace_bytes = plan->kernel->workspace_bytes(plan->problem, plan->pool.threads);
  if (plan->queue != nullptr && plan->problem.mask4.present()) {
    const auto total = mask_tiles_total(*plan->queue, plan->problem.device.index);
    if (!total.ok()) return total.status();
    plan->mask_tiles_skipped = *total;
  }
  describe(*plan, *selection);
  return std::shared_ptr<const PlanState>(std::move(plan));
}

/// A buffer of the library's, held for one run.
struct OwnWorkspace {
  std::optional<BorrowedWorkspace> host;
  StreamWorkspace device;
};

Status take_workspace(const PlanState& plan, void* stream, bool captured, OwnWorkspace& own,
                      Launch& launch) {
  const char* where = name_of(plan.problem.direction);
  if (plan.queue != nullptr) {
    if (captured)
      return {StatusCode::invalid,
              formatted("[{}] a run that a graph records needs the caller's workspace of {} "
                        "bytes: the library's may be another when the graph is replayed",
                        where, plan.workspace_bytes)};
    FOVEA_RETURN_IF_ERROR(
        own.device.take(*plan.queue, plan.problem.device.index, stream, plan.workspace_bytes));
    launch.workspace = own.device.data();
    return {};
  }
  own.host.emplace(plan.workspace_bytes);
  launch.workspace = own.host->data();
  if (launch.workspace != nullptr) return {};
  return {StatusCode::out_of_memory,
          formatted("[{}] could not allocate {} bytes of workspace for {}", where,
                    plan.workspace_bytes, plan.kernel->id)};
}

/// The caller's workspace, or one of the library's.
Status give_workspace(const PlanState& plan, const RunOptions& options, bool captured,
                      OwnWorkspace& own, Launch& launch) {
  if (plan.workspace_bytes == 0) return {};
  const char* where = name_of(plan.problem.direction);
  void* memory = options.workspace;
  if (memory == nullptr && options.source.allocate == nullptr)
    return take_workspace(plan, options.stream, captured, own, launch);
  if (memory == nullptr) {
    memory = options.source.allocate(options.source.self, plan.workspace_bytes);
    if (memory == nullptr)
      return {StatusCode::out_of_memory, formatted("[{}] the caller's source has no {} bytes of "
                                                   "workspace",
                                                   where, plan.workspace_bytes)};
  } else if (options.workspace_bytes < plan.workspace_bytes) {
    return {StatusCode::out_of_memory,
            formatted("[{}] workspace must have at least {} bytes; got {}", where,
                      plan.workspace_bytes, options.workspace_bytes)};
  }
  if (reinterpret_cast<std::uintptr_t>(memory) % 64 != 0)
    return {StatusCode::invalid,
            formatted("[{}] workspace must be 64-byte aligned; got {}", where, memory)};
  launch.workspace = static_cast<std::byte*>(memory);
  return {};
}

void count_call(const PlanState& plan) {
  counting::Totals& totals = counting::totals();
  ++(plan.problem.direction == Direction::forward ? totals.forward_calls : totals.backward_calls);
  for (counting::Counter* counter : plan.refusals) ++*counter;
  if (plan.report.fused_prologue) ++totals.fused_prologues;
  totals.staged_copies += static_cast<std::uint64_t>(plan.report.staged_copies);
  if (plan.problem.features.has(Feature::quantization)) ++totals.quantized;
  if (plan.has_preferred) ++totals.fallbacks;
}

template <class Args>
Status check_fit_of(const PlanState& plan, const Args& args) {
  constexpr Direction kDirection =
      std::is_same_v<Args, ForwardArgs> ? Direction::forward : Direction::backward;
  if (plan.problem.direction != kDirection)
    return {StatusCode::invalid, formatted("[{}] the plan was made for {}", name_of(kDirection),
                                           name_of(plan.problem.direction))};
  return check_structure(plan.structure, args);
}

/// Says, when the choice was a fallback, that the preferred kernel did not serve.
void note_preferred(const PlanState& plan, detail::JobState& job, const char* served_by) {
  if (plan.has_preferred) proof::not_used(job, plan.preferred, plan.preferred_reason, served_by);
}

template <class Args>
Status run_any(const PlanState& plan, const Args& args, const RunOptions& options) {
  Problem problem = plan.problem;
  FOVEA_RETURN_IF_ERROR(rebind(problem, args));

  Launch launch;
  launch.stream = options.stream;
  launch.pool = &plan.pool;
  launch.mask_tiles_skipped = plan.mask_tiles_skipped;
  bool captured = false;
  if (plan.queue != nullptr) {
    settle_finished_runs_now_and_then();
    const Result<bool> capturing = plan.queue->capturing(plan.problem.device.index, options.stream);
    if (!capturing.ok()) return capturing.status();
    captured = *capturing;
  }
  OwnWorkspace own;
  FOVEA_RETURN_IF_ERROR(give_workspace(plan, options, captured, own, launch));

  count_call(plan);
  auto& count = counting::totals().kernels[plan.subject.row];
  const std::uint64_t epoch = counting::totals().epoch;
  ++(captured ? count.captured : count.launched);
  const std::shared_ptr<detail::JobState>& job = detail::JobState::of(options.job);
  Status status = plan.kernel->run(problem, launch);
  if (status.ok() && captured) {
    note_preferred(plan, *job, plan.kernel->id);
    return follow_replays({plan.shared_from_this(), job, epoch}, options.stream);
  }
  if (status.ok() && plan.queue != nullptr) {
    status = follow({plan.shared_from_this(), job, epoch}, options.stream);
    if (status.ok()) return {};
  }
  settle(plan, *job, epoch, status);
  return status;
}

}  // namespace

Result<std::shared_ptr<const PlanState>> make_plan(const ForwardArgs& args,
                                                   const PlanOptions& options) {
  return make_any(args, options);
}
Result<std::shared_ptr<const PlanState>> make_plan(const BackwardArgs& args,
                                                   const PlanOptions& options) {
  return make_any(args, options);
}

Status check_fit(const PlanState& plan, const ForwardArgs& args) {
  return check_fit_of(plan, args);
}
Status check_fit(const PlanState& plan, const BackwardArgs& args) {
  return check_fit_of(plan, args);
}

Status run_plan(const PlanState& plan, const ForwardArgs& args, const RunOptions& options) {
  return run_any(plan, args, options);
}
Status run_plan(const PlanState& plan, const BackwardArgs& args, const RunOptions& options) {
  return run_any(plan, args, options);
}

void settle(const PlanState& plan, detail::JobState& job, std::uint64_t epoch,
            const Status& status) {
  counting::Totals& totals = counting::totals();
  auto& count = totals.kernels[plan.subject.row];
  // What was launched before a reset of the counters is not theirs any more.
  if (epoch == totals.epoch) ++(status.ok() ? count.completed : count.failed);
  note_preferred(plan, job, status.ok() ? plan.kernel->id : nullptr);
  if (status.ok())
    proof::completed(job, plan.subject);
  else
    proof::not_used(job, plan.subject, status.message(), nullptr);
}

void settle_replay(const PlanState& plan, detail::JobState& job, std::uint64_t replays) {
  counting::totals().kernels[plan.subject.row].replayed += replays;
  proof::completed(job, plan.subject);
}

}  // namespace fovea
