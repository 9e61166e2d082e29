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
  const auto finish = [&](Result<Plan> plan) -> Result<Contestant> {
    if (!plan) return plan.status();
    made.plan_ = *plan;
    made.workspace_ = std::make_shared<cases::Buffer>(plan->workspace_bytes());
    return made;
  };
  if (direction == cases::Direction::forward) {
    made.outputs_ = cases::make_forward_outputs(inputs, cases::Width::as_asked);
    made.forward_ = cases::forward_args(inputs, made.outputs_);
    return finish(Plan::make(made.forward_, options));
  }
  const Result<const cases::Saved*> saved = prepared.saved(kernel);
  if (!saved) return saved.status();
  made.outputs_ = cases::make_backward_outputs(inputs, cases::Width::as_asked);
  made.backward_ = cases::backward_args(inputs, **saved, made.outputs_);
  return finish(Plan::make(made.backward_, options));
}

Status Contestant::run_once() const {
  RunOptions run;
  run.workspace = workspace_->data();
  run.workspace_bytes = workspace_->bytes();
  return direction_ == cases::Direction::forward ? plan_->run(forward_, run)
                                                 : plan_->run(backward_, run);
}

Result<double> Contestant::time(double seconds) const {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  double elapsed = 0;
  int runs = 0;
  do {
    if (Status status = run_once(); !status.ok()) return status;
    ++runs;
    elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
  } while (elapsed < seconds);
  return elapsed / runs;
}

}  // namespace fovea::cli
