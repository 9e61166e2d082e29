#include "cli/bench_measure.h"

#include <algorithm>
#include <chrono>

namespace fovea::cli {

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double quantile) {
    const double place = quantile * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
  };
  return {at(0.5), at(0.25), at(0.75), values.front(), values.back()};
}

Result<Contestant> Contestant::make(cases::PreparedCase& prepared, cases::Direction direction,
                                    const std::string& kernel, int threads) {
  Contestant made;
  made.direction_ = direction;
  PlanOptions options;
  options.choice.kernel = kernel;
  options.num_threads = threads;
  const cases::Inputs& inputs = prepared.inputs();
  const Device device = cases::device_of(kernel);
  if (cases::is_emulated(device)) {
    return Status(StatusCode::unsupported,
                  kernel + ": an emulated device is not timed, since the host computes for it");
  }
  /// `args`: where the contestant keeps its arguments.
  const auto finish = [&](auto& args, const cases::Saved* saved) -> Result<Contestant> {
    const Result<Plan> plan = Plan::make(cases::as_on(device, args), options);
    if (!plan) return plan.status();
    made.plan_ = *plan;
    made.workspace_ = std::make_shared<cases::Buffer>(plan->workspace_bytes());
    if (device.type == DeviceType::cpu) return made;
    made.copies_ = std::make_shared<cases::DeviceCopies>(device);
    std::vector<const cases::Buffer*> buffers = cases::buffers_read(inputs, saved);
    for (const cases::Buffer* buffer : cases::buffers_written(made.outputs_)) {
      buffers.push_back(buffer);
    }
    buffers.push_back(made.workspace_.get());
    for (const cases::Buffer* buffer : buffers) {
      if (Status status = made.copies_->add(*buffer); !status.ok()) return status;
    }
    args = made.copies_->moved(args);
    return made;
  };
  if (direction == cases::Direction::forward) {
    made.outputs_ = cases::make_forward_outputs(inputs, cases::Width::as_asked);
    made.forward_ = cases::forward_args(inputs, made.outputs_);
    return finish(made.forward_, nullptr);
  }
  const Result<const cases::Saved*> saved = prepared.saved(kernel);
  if (!saved) return saved.status();
  made.outputs_ = cases::make_backward_outputs(inputs, cases::Width::as_asked);
  made.backward_ = cases::backward_args(inputs, **saved, made.outputs_);
  return finish(made.backward_, *saved);
}

Result<Report> Contestant::choose(cases::PreparedCase& prepared, cases::Direction direction,
                                  const Device& device, int threads, bool autotune) {
  PlanOptions options;
  options.num_threads = threads;
  options.autotune = autotune;
  const cases::Inputs& inputs = prepared.inputs();
  const auto report_of = [&](const auto& args) -> Result<Report> {
    const Result<Plan> plan = Plan::make(cases::as_on(device, args), options);
    if (!plan) return plan.status();
    return plan->report();
  };
  if (direction == cases::Direction::forward) {
    const cases::Outputs outputs = cases::make_forward_outputs(inputs, cases::Width::as_asked);
    return report_of(cases::forward_args(inputs, outputs));
  }
  const cases::Saved saved{
      cases::make_like_out(prepared.spec(), inputs.lengths, prepared.spec().out_dtype()),
      cases::make_like_lse(prepared.spec(), inputs.lengths)};
  const cases::Outputs outputs = cases::make_backward_outputs(inputs, cases::Width::as_asked);
  return report_of(cases::backward_args(inputs, saved, outputs));
}

Status Contestant::run_once() const {
  RunOptions run;
  run.workspace = copies_ == nullptr ? workspace_->data() : copies_->address_of(workspace_->data());
  run.workspace_bytes = workspace_->bytes();
  return direction_ == cases::Direction::forward ? plan_->run(forward_, run)
                                                 : plan_->run(backward_, run);
}

Result<double> Contestant::time(double seconds) const {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  // Work between two waits, so long that waiting does not count.
  constexpr double kQueuedSeconds = 0.02, kMostQueued = 512;
  double elapsed = 0;
  int runs = 0, queued = 1;
  do {
    for (int n = 0; n < queued; ++n) {
      if (Status status = run_once(); !status.ok()) return status;
    }
    if (Status status = synchronize(device()); !status.ok()) return status;
    runs += queued;
    elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
    if (copies_ != nullptr) {
      queued = static_cast<int>(std::clamp(kQueuedSeconds * runs / elapsed, 1.0, kMostQueued));
    }
  } while (elapsed < seconds);
  return elapsed / runs;
}

}  // namespace fovea::cli
