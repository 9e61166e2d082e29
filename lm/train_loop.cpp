// run_training: progress lines, validation, saving, stopping.
#include <algorithm>
#include <chrono>

#include "lm/error.h"
#include "lm/memory.h"
#include "lm/train.h"

namespace fovea::lm {
namespace {

using Clock = std::chrono::steady_clock;

// A schedule that is to be fitted to the time is measured on the steps between these two.
constexpr std::int64_t kMeasureFrom = 3;
constexpr std::int64_t kMeasureTo = 15;
// Share of the time for steps; the rest is for validation, saving and slower moments.
constexpr double kTimeForSteps = 0.92;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double megabytes(std::int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0); }

// What is shown in one progress line: losses and times since the line before.
class Progress {
 public:
  Progress(const Trainer& trainer, const TrainLoop& loop) : trainer_(trainer), loop_(loop) {}

  void add(const StepResult& result, double seconds) {
    loss_ += result.loss;
    seconds_ += seconds;
    ++steps_;
    last_ = result;
  }

  void print(std::optional<double> validation) {
    if (steps_ == 0 || !loop_.log) return;
    const std::string shown = validation ? fmt::format("{:.4f}", *validation) : "-";
    const double count = static_cast<double>(steps_);
    const double tokens =
        static_cast<double>(trainer_.options().batch * trainer_.options().context);
    const std::int64_t total = trainer_.options().steps;
    const std::string of = total > 0 ? fmt::format("{}", total) : "?";
    loop_.log(fmt::format(
        "step {:>5}/{}  loss {:.4f}  val {:<6}  grad {:.2f}  lr {:.2e}  {:.0f} ms  {:.0f} tok/s  "
        "mem {:.0f}/{:.0f} MB  {}",
        last_.step, of, loss_ / count, shown, last_.grad_norm, last_.learning_rate,
        1e3 * seconds_ / count, tokens * count / seconds_, megabytes(tensor_memory().peak_bytes),
        megabytes(peak_resident_bytes()), attention_kernels(trainer_.job())));
    loss_ = seconds_ = 0;
    steps_ = 0;
  }

 private:
  const Trainer& trainer_;
  const TrainLoop& loop_;
  double loss_ = 0, seconds_ = 0;
  std::int64_t steps_ = 0;
  StepResult last_;
};

void check(const Trainer& trainer, const TrainLoop& loop) {
  if (!(loop.seconds >= 0)) fail("[train] seconds must be at least 0; got {}", loop.seconds);
  if (loop.log_every < 1) fail("[train] log_every must be at least 1; got {}", loop.log_every);
  if (loop.validate_every < 0 || loop.save_every < 0 || loop.stop_at < 0) {
    fail("[train] validate_every, save_every and stop_at must be at least 0; got {}, {} and {}",
         loop.validate_every, loop.save_every, loop.stop_at);
  }
  if (trainer.options().steps == 0 && loop.seconds == 0) {
    fail("[train] steps 0 fits the schedule to a time limit, and none is given (seconds 0)");
  }
}

}  // namespace

std::string attention_kernels(const Job& job) {
  std::string text;
  std::string last_path;
  for (const std::string& kernel : job.kernels_ran()) {
    // "cpu.avx512.forward", "cpu.avx512.backward": the common path is shown once.
    const std::size_t dot = kernel.rfind('.');
    const std::string path = dot == std::string::npos ? "" : kernel.substr(0, dot);
    if (!text.empty() && !path.empty() && path == last_path) {
      text.append(1, '+').append(kernel, dot + 1);
    } else {
      text.append(text.empty() ? "" : " ").append(kernel);
    }
    last_path = path;
  }
  return text.empty() ? "none" : text;
}

TrainEnd run_training(Trainer& trainer, const TrainLoop& loop) {
  check(trainer, loop);
  const Clock::time_point start = Clock::now();
  const std::int64_t first = trainer.steps_done();
  Progress progress(trainer, loop);
  Clock::time_point measured_from = start;
  std::int64_t saved_at = -1;
  const auto save = [&] {
    if (loop.checkpoint.empty() || saved_at == trainer.steps_done()) return;
    trainer.save(loop.checkpoint);
    saved_at = trainer.steps_done();
  };

  TrainEnd end = TrainEnd::finished;
  while (trainer.options().steps == 0 || trainer.steps_done() < trainer.options().steps) {
    if (loop.stop_at > 0 && trainer.steps_done() >= loop.stop_at) {
      end = TrainEnd::stopped;
      break;
    }
    const Clock::time_point step_start = Clock::now();
    const StepResult result = trainer.step();
    progress.add(result, seconds_since(step_start));

    const std::int64_t here = result.step - first;
    if (here == kMeasureFrom) measured_from = Clock::now();
    if (here == kMeasureTo && trainer.options().steps == 0) {
      const double each = seconds_since(measured_from) / (kMeasureTo - kMeasureFrom);
      const double left = kTimeForSteps * loop.seconds - seconds_since(start);
      const auto more = static_cast<std::int64_t>(std::min(std::max(left, 0.0) / each, 1e9));
      trainer.set_steps(result.step + std::max<std::int64_t>(more, 1));
    }

    const bool last = result.step == trainer.options().steps || result.step == loop.stop_at;
    const bool validate =
        loop.validate_every > 0 && (last || result.step % loop.validate_every == 0);
    if (validate || here == 1 || last || result.step % loop.log_every == 0) {
      progress.print(validate ? trainer.validation_loss() : std::nullopt);
    }
    if (loop.save_every > 0 && result.step % loop.save_every == 0) save();
    if (loop.interrupted && loop.interrupted()) {
      end = TrainEnd::interrupted;
      break;
    }
    if (loop.seconds > 0 && seconds_since(start) >= loop.seconds && !last) {
      end = TrainEnd::time_limit;
      break;
    }
  }
  progress.print(std::nullopt);
  save();
  return end;
}

}  // namespace fovea::lm
