// Training: one step at a time, and the loop around it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <fovea/report.h>

#include "lm/checkpoint.h"
#include "lm/data.h"
#include "lm/gpt2.h"
#include "lm/optim.h"

namespace fovea::lm {

/// What defines a run, saved in its checkpoints.
struct TrainOptions {
  static constexpr std::int64_t kMost = 1 << 24;  ///< of what counts windows, or tokens in one

  std::int64_t batch = 4;       ///< windows per step
  std::int64_t context = 512;   ///< tokens per window, at most the model's
  std::int64_t steps = 1000;    ///< length of the schedule; 0: still to be measured (TrainLoop)
  double learning_rate = 2e-3;  ///< peak
  double final_ratio = 0.1;     ///< of the peak, at the end of the schedule
  std::int64_t warmup = 20;     ///< steps
  double clip_norm = 1.0;       ///< 0: no clipping
  AdamWOptions adamw;
  std::uint64_t seed = 1;                ///< of the weights and of the order of the data
  std::int64_t validation_windows = 16;  ///< most windows of one validation pass

  /// Throws fovea::Error that names the option and its value.
  void validate() const;
  [[nodiscard]] nlohmann::json to_json() const;
  static TrainOptions from_json(const nlohmann::json& json);
};

struct StepResult {
  std::int64_t step = 0;  ///< steps done, this one included
  double loss = 0;        ///< mean over the batch before the update, nats per token
  double grad_norm = 0;   ///< before clipping
  double learning_rate = 0;
};

/// A model in training: weights, optimiser, data cursor. For one build on one machine, the bits of
/// every step are determined by the options and the text, whatever the number of threads and
/// however often the run was saved and resumed.
class Trainer {
 public:
  /// Random weights. `data` must outlive this.
  Trainer(const Gpt2Config& config, const TrainOptions& options, const TextData& data);
  /// Continues a checkpoint. Throws fovea::Error when it has no training state or was made with
  /// another text.
  Trainer(const CheckpointFile& checkpoint, const TextData& data);

  /// One step. Throws fovea::Error, with nothing updated, when loss or gradients are not finite.
  StepResult step();
  /// Mean loss over the first windows of the validation text, or nothing when it has none.
  [[nodiscard]] std::optional<double> validation_loss();
  void save(const std::filesystem::path& path) const;

  [[nodiscard]] const Gpt2& model() const { return model_; }
  [[nodiscard]] const AdamW& optimizer() const { return optimizer_; }
  [[nodiscard]] const TrainOptions& options() const { return options_; }
  [[nodiscard]] std::int64_t steps_done() const { return step_; }
  [[nodiscard]] std::int64_t epoch() const { return batches_.epoch(); }
  /// Fixes a schedule that was still to be measured.
  void set_steps(std::int64_t steps);
  /// The job that proves which attention kernels ran.
  [[nodiscard]] const Job& job() const { return *job_; }

 private:
  Trainer(Gpt2 model, const TrainOptions& options, const TextData& data);

  TrainOptions options_;
  const TextData& data_;
  std::string fingerprint_;
  Gpt2 model_;
  AdamW optimizer_;
  BatchIterator batches_;
  std::int64_t step_ = 0;
  std::unique_ptr<Job> job_;
};

/// How a session of training goes; nothing here changes the bits.
struct TrainLoop {
  std::filesystem::path checkpoint;   ///< written at the end and on interruption; empty: never
  double seconds = 0;                 ///< stop after this time; 0: no limit
  std::int64_t stop_at = 0;           ///< stop (and save) at this step; 0: at the schedule's end
  std::int64_t log_every = 10;        ///< steps
  std::int64_t validate_every = 50;   ///< steps
  std::int64_t save_every = 0;        ///< steps; 0: at the end only
  std::function<bool()> interrupted;  ///< asked after every step
  std::function<void(std::string_view)> log;  ///< receives progress lines, without newline
};

enum class TrainEnd { finished, interrupted, time_limit, stopped };

/// Trains to the end of the schedule, or until told to stop, and saves. With options().steps 0 the
/// schedule is fitted to `seconds` by the speed of the first steps, and then belongs to the run.
TrainEnd run_training(Trainer& trainer, const TrainLoop& loop);

/// The attention kernels that have completed in a job: "cpu.avx512.forward+backward".
std::string attention_kernels(const Job& job);

}  // namespace fovea::lm
