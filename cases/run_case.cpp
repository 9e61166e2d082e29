#include "cases/run_case.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <fovea/introspect.h>

#include "cases/device_copies.h"
#include "cases/sample.h"
#include "cases/work.h"

namespace fovea::cases {
namespace {

/// Rows that a case is judged over, where no more than kMostDraws draws or kDrawFlops make them up.
constexpr double kRowsWanted = 2048;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Some ten times as slow, and there to find other faults: limits are judged without sanitizers.
constexpr bool kJudgesLimits = false;
constexpr double kMostDraws = 1;
#else
constexpr bool kJudgesLimits = true;
constexpr double kMostDraws = 64;
#endif
constexpr double kDrawFlops = 5e7, kEmulatedDrawFlops = 2e7;
/// Above this the oracle would take more than some ten seconds.
constexpr double kOracleFlops = 2e10;

PlanOptions options_for(const std::string& kernel, int threads) {
  PlanOptions options;
  options.choice.kernel = kernel;
  // The case is the check, and a kernel that fails must be seen to fail.
  options.self_check = false;
  options.deterministic = true;
  options.num_threads = threads;
  return options;
}

/// A kernel that repeats its results is asked to; one that does not is run as it is.
template <class Args>
Result<Plan> make_plan(const Args& args, const std::string& kernel, int threads) {
  PlanOptions options = options_for(kernel, threads);
  Result<Plan> plan = Plan::make(args, options);
  if (plan || plan.status().code() != StatusCode::unsupported) return plan;
  options.deterministic = false;
  return Plan::make(args, options);
}

template <class Args>
Status run_plain(const Args& args, const std::string& kernel) {
  Result<Plan> plan = Plan::make(args, options_for(kernel, 0));
  if (!plan) return plan.status();
  return plan->run(args);
}

/// Where a call's memory lies: what is read, and what is written.
struct Memory {
  std::vector<const Buffer*> read, written;
};

/// Runs a plan on copies of the call's memory and brings back what was written. `stray`: says that
/// something was written that should not have been.
template <class Args>
Status run_on_device(const Device& device, const Plan& plan, const Args& args, const Memory& memory,
                     const Buffer& workspace, std::string& stray) {
  DeviceCopies copies(device);
  for (const auto* list : {&memory.read, &memory.written}) {
    for (const Buffer* buffer : *list) {
      if (Status s = copies.add(*buffer); !s.ok()) return s;
    }
  }
  if (Status s = copies.add(workspace); !s.ok()) return s;
  RunOptions run;
  run.workspace = copies.address_of(workspace.data());
  run.workspace_bytes = workspace.bytes();
  if (Status s = plan.run(copies.moved(args), run); !s.ok()) return s;
  if (Status s = synchronize(device); !s.ok()) return s;
  for (const Buffer* buffer : memory.read) {
    const Result<bool> unchanged = copies.unchanged(buffer->base());
    if (!unchanged) return unchanged.status();
    if (!*unchanged) stray = "inputs, or the bytes around them, were overwritten";
  }
  for (const Buffer* buffer : memory.written) {
    if (Status s = copies.fetch(buffer->base()); !s.ok()) return s;
  }
  return copies.fetch(workspace.base());
}

/// The kernel's own reason where the library gives one, else the whole message.
template <class Args>
std::string refusal_of(const Args& args, const std::string& kernel, const Status& status) {
  PlanOptions options = options_for("", 0);
  options.deterministic = false;
  const auto reasons = why_not(as_on(device_of(kernel), args), options);
  if (reasons.ok()) {
    for (const PassedOver& entry : *reasons) {
      if (entry.kernel == kernel && !entry.reason.empty()) return entry.reason;
    }
  }
  return status.message();
}

/// What is wrong with a run beside its numbers; empty when nothing is.
struct RunReport {
  std::string failure;
  bool refused = false;
};

template <class Args>
RunReport run_guarded(const Inputs& inputs, const Saved* saved, const Args& args,
                      const Outputs& outputs, const std::string& kernel, int threads) {
  const Device device = device_of(kernel);
  Result<Plan> plan = make_plan(as_on(device, args), kernel, threads);
  if (!plan) {
    const Status status = plan.status();
    if (status.code() == StatusCode::unsupported) return {refusal_of(args, kernel, status), true};
    return {status.message(), false};
  }
  if (plan->report().kernel != kernel) {
    return {fmt::format("{} was chosen instead", plan->report().kernel), false};
  }
  const Buffer workspace(plan->workspace_bytes());
  Status status;
  std::string stray;
  if (device.type == DeviceType::cpu) {
    RunOptions run;
    run.workspace = workspace.data();
    run.workspace_bytes = workspace.bytes();
    status = plan->run(args, run);
  } else {
    status =
        run_on_device(device, *plan, args, {buffers_read(inputs, saved), buffers_written(outputs)},
                      workspace, stray);
  }
  if (!status.ok()) {
    const bool refused = device.type != DeviceType::cpu && status.code() == StatusCode::unsupported;
    return {status.message(), refused};
  }
  if (!stray.empty()) return {stray, false};
  if (!workspace.guards_intact()) return {"the bytes around the workspace were overwritten", false};
  if (!inputs.intact()) return {"inputs, or the bytes around them, were overwritten", false};
  return {outputs.stray_writes(), false};
}

/// Forward of a pair, whose results a backward kernel reads.
Status run_forward(const Inputs& inputs, const Saved& made, const ForwardArgs& args,
                   const std::string& kernel) {
  const Device device = device_of(kernel);
  if (device.type == DeviceType::cpu) return run_plain(args, kernel);
  const Result<Plan> plan = make_plan(as_on(device, args), kernel, 0);
  if (!plan) return plan.status();
  Memory memory{buffers_read(inputs, nullptr), {made.lse.buffer.get()}};
  for (const Tensor& out : made.out) memory.written.push_back(out.buffer.get());
  std::string stray;
  return run_on_device(device, *plan, args, memory, Buffer(plan->workspace_bytes()), stray);
}

/// Asked before forward's results are computed, which nobody may be able to.
RunReport refuses_backward(const Inputs& inputs, const std::string& kernel) {
  const Saved saved{make_like_out(inputs.c, inputs.lengths, inputs.c.out_dtype()),
                    make_like_lse(inputs.c, inputs.lengths)};
  const Outputs outputs = make_backward_outputs(inputs, Width::as_asked);
  const BackwardArgs args = backward_args(inputs, saved, outputs);
  const Result<Plan> plan = make_plan(as_on(device_of(kernel), args), kernel, 0);
  if (plan.ok() || plan.status().code() != StatusCode::unsupported) return {};
  return {refusal_of(args, kernel, plan.status()), true};
}

struct Execution {
  Outputs outputs;
  RunReport report;
};

Execution execute(PreparedCase& prepared, const std::string& kernel, Direction direction,
                  int threads) {
  const Inputs& inputs = prepared.inputs();
  Execution execution;
  if (direction == Direction::forward) {
    execution.outputs = make_forward_outputs(inputs, Width::as_asked);
    execution.report = run_guarded(inputs, nullptr, forward_args(inputs, execution.outputs),
                                   execution.outputs, kernel, threads);
  } else {
    if (RunReport refusal = refuses_backward(inputs, kernel); refusal.refused) {
      return {{}, std::move(refusal)};
    }
    const Result<const Saved*> saved = prepared.saved(kernel);
    if (!saved) return {{}, {fmt::format("no forward: {}", saved.status().message()), false}};
    execution.outputs = make_backward_outputs(inputs, Width::as_asked);
    execution.report =
        run_guarded(inputs, *saved, backward_args(inputs, **saved, execution.outputs),
                    execution.outputs, kernel, threads);
  }
  return execution;
}

CaseResult failed(std::string reason) {
  CaseResult result;
  result.outcome = Outcome::failed;
  result.reason = std::move(reason);
  return result;
}

std::vector<Comparison> compare_all(const std::vector<ErrorSums>& sums, DType compute) {
  std::vector<Comparison> comparisons;
  for (const ErrorSums& tensor : sums) comparisons.push_back(tensor.compare(compute));
  return comparisons;
}

bool all_ok(const std::vector<Comparison>& comparisons) {
  return std::all_of(comparisons.begin(), comparisons.end(), [](const Comparison& c) {
    return kJudgesLimits ? c.ok() : c.violation.empty();
  });
}

std::string describe_failure(const std::vector<Comparison>& comparisons) {
  std::string text;
  for (const Comparison& c : comparisons) {
    if (c.ok()) continue;
    text += fmt::format("{}{}: ", text.empty() ? "" : "; ", c.tensor);
    text += c.violation.empty() ? fmt::format("error {:.3g} > {:.3g} (baseline {:.3g})", c.error,
                                              c.limit, c.baseline_error)
                                : c.violation;
  }
  return text;
}

Result<std::vector<ErrorSums>> measure_run(PreparedCase& prepared, const std::string& kernel,
                                           const Outputs& outputs, Direction direction) {
  if (prepared.sampled()) {
    const bool forward = direction == Direction::forward;
    return measure_samples(prepared.inputs(), outputs, forward ? nullptr : *prepared.saved(kernel),
                           direction);
  }
  const PreparedCase::Expected& expected = prepared.expected(direction);
  if (!expected.status.ok()) return expected.status;
  return measure(prepared.inputs(), outputs, expected.oracle, expected.baseline,
                 prepared.expected(Direction::forward).oracle);
}

/// Runs one draw of a case and adds its errors to `result` and `sums`. False: `result` has the
/// refusal or failure that ends the case.
bool run_draw(PreparedCase& prepared, const std::string& kernel, Direction direction, int threads,
              std::vector<ErrorSums>& sums, CaseResult& result) {
  const Execution execution = execute(prepared, kernel, direction, threads);
  if (execution.report.refused) {
    result.outcome = Outcome::refused;
    result.reason = execution.report.failure;
    return false;
  }
  if (!execution.report.failure.empty()) {
    result = failed(execution.report.failure);
    return false;
  }
  const auto measured = measure_run(prepared, kernel, execution.outputs, direction);
  if (!measured) {
    result = failed(fmt::format("no oracle: {}", measured.status().message()));
    return false;
  }
  if (sums.empty()) {
    sums = *measured;
    result.hash = execution.outputs.hash();
  } else {
    for (std::size_t n = 0; n < sums.size(); ++n) sums[n].add((*measured)[n]);
  }
  return true;
}

}  // namespace

Status run_trusted(const ForwardArgs& args, const std::string& kernel) {
  return run_plain(args, kernel);
}
Status run_trusted(const BackwardArgs& args, const std::string& kernel) {
  return run_plain(args, kernel);
}

Direction direction_of(std::string_view kernel) {
  return kernel.ends_with(".backward") ? Direction::backward : Direction::forward;
}

int draws_of(const Case& c, bool emulated) {
  const double rows = static_cast<double>(c.batch * c.q_heads * c.q_len);
  const double draws = std::min({kMostDraws, std::ceil(kRowsWanted / rows),
                                 emulated ? kEmulatedDrawFlops / tiled_flops_of(c)
                                          : kDrawFlops / flops_of(c, Direction::forward)});
  const bool huge = c.layout == Layout::wide;  // as gigabytes of addresses are
  return rows == 0 || huge ? 1 : std::max(1, static_cast<int>(draws));
}

PreparedCase::PreparedCase(const Case& c, std::uint64_t seed)
    : inputs_(make_inputs(c, seed)),
      sampled_(can_be_sampled(c) && flops_of(c, Direction::forward) > kOracleFlops) {}

PreparedCase& PreparedCase::draw(int n) {
  if (n == 0) return *this;
  const auto at = static_cast<std::size_t>(n - 1);
  if (more_draws_.size() <= at) more_draws_.resize(at + 1);
  std::unique_ptr<PreparedCase>& slot = more_draws_[at];
  if (!slot) {
    const std::uint64_t seed = this->seed() + static_cast<std::uint64_t>(n) * 0x100000u;
    slot = std::make_unique<PreparedCase>(spec(), seed);
  }
  return *slot;
}

const PreparedCase::Expected& PreparedCase::expected(Direction direction) {
  std::optional<Expected>& slot = direction == Direction::forward ? forward_ : backward_;
  if (slot) return *slot;
  const bool forward = direction == Direction::forward;
  Expected made;
  made.oracle = forward ? make_forward_outputs(*inputs_, Width::widest)
                        : make_backward_outputs(*inputs_, Width::widest);
  made.baseline = forward ? make_forward_outputs(*inputs_, Width::as_asked)
                          : make_backward_outputs(*inputs_, Width::as_asked);
  const auto run = [&](const Outputs& outputs, const char* family) {
    const std::string kernel = fmt::format("cpu.{}.{}", family, forward ? "forward" : "backward");
    return forward ? run_trusted(forward_args(*inputs_, outputs), kernel)
                   : run_trusted(backward_args(*inputs_, **saved(kernel), outputs), kernel);
  };
  if (!forward) made.status = expected(Direction::forward).status;
  if (made.status.ok()) made.status = run(made.oracle, "reference");
  if (inputs_->c.compute() == DType::f64) {
    made.baseline =
        made.oracle;  // there is no yardstick for f64, in which only the oracle computes
  } else if (made.status.ok()) {
    made.status = run(made.baseline, "baseline");
  }
  slot = std::move(made);
  return *slot;
}

Result<const Saved*> PreparedCase::saved(const std::string& kernel) {
  const std::string pair = kernel.empty() ? "" : kernel.substr(0, kernel.rfind('.')) + ".forward";
  auto found = saved_.find(pair);
  if (found != saved_.end()) return &found->second;
  Saved made{make_like_out(inputs_->c, inputs_->lengths, inputs_->c.out_dtype()),
             make_like_lse(inputs_->c, inputs_->lengths)};
  ForwardArgs args;
  args.params = inputs_->params;
  for (const Tensor& out : made.out) args.out.add(out.view);
  args.lse = made.lse.view;
  Status status = run_forward(*inputs_, made, args, pair);
  if (status.code() == StatusCode::unsupported) status = run_trusted(args, "cpu.reference.forward");
  if (!status.ok()) return status;
  found = saved_.emplace(pair, std::move(made)).first;
  return &found->second;
}

CaseResult run_case(PreparedCase& prepared, const std::string& kernel,
                    const std::vector<int>& threads, int draws) {
  const Direction direction = direction_of(kernel);
  CaseResult result;
  result.sampled = prepared.sampled();
  result.draws = draws > 0 ? draws : draws_of(prepared.spec(), is_emulated(device_of(kernel)));
  std::vector<ErrorSums> sums;
  for (int n = 0; n < result.draws; ++n)
    if (!run_draw(prepared.draw(n), kernel, direction, threads.front(), sums, result))
      return result;
  result.comparisons = compare_all(sums, prepared.spec().compute());
  if (!all_ok(result.comparisons)) {
    result.outcome = Outcome::failed;
    result.reason = describe_failure(result.comparisons);
    return result;
  }
  for (std::size_t n = 1; n < threads.size(); ++n) {
    const Execution again = execute(prepared, kernel, direction, threads[n]);
    if (!again.report.failure.empty()) return failed(again.report.failure);
    if (again.outputs.hash() != result.hash) {
      return failed(fmt::format("{} and {} threads give different bits", threads[0], threads[n]));
    }
  }
  return result;
}

}  // namespace fovea::cases
