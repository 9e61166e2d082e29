// Trainer: the state of a run and one step of it.
#include <cmath>
#include <utility>

#include "lm/error.h"
#include "lm/json_fields.h"
#include "lm/ops.h"
#include "lm/train.h"

namespace fovea::lm {
namespace {

Gpt2 random_model(const Gpt2Config& config, const TrainOptions& options) {
  options.validate();
  Rng rng(options.seed);
  return {config, rng};
}

// The seed of the data's order, apart from that of the weights.
std::uint64_t data_seed(std::uint64_t seed) { return seed ^ 0xda7a5eedU; }

TrainOptions saved_options(const CheckpointFile& checkpoint) {
  if (!checkpoint.has_training_state()) {
    fail("[train] {} holds weights alone: there is no training state to resume", checkpoint.path());
  }
  JsonFields fields(checkpoint.trainer(), "checkpoint " + checkpoint.path() + ": trainer");
  return TrainOptions::from_json(fields.object("options"));
}

}  // namespace

void TrainOptions::validate() const {
  const auto check = [](const char* name, std::int64_t value, std::int64_t smallest) {
    if (value < smallest || value > kMost) {
      fail("[train] {} must be {} to {}; got {}", name, smallest, kMost, value);
    }
  };
  check("batch", batch, 1);
  check("context", context, 1);
  check("validation_windows", validation_windows, 0);
  if (steps < 0) fail("[train] steps must be at least 0; got {}", steps);
  if (!(clip_norm >= 0)) fail("[train] clip_norm must be at least 0; got {}", clip_norm);
  adamw.validate();
  LearningRate{learning_rate, final_ratio, warmup, std::max<std::int64_t>(steps, 1)}.validate();
}

nlohmann::json TrainOptions::to_json() const {
  return {{"batch", batch},
          {"context", context},
          {"steps", steps},
          {"learning_rate", learning_rate},
          {"final_ratio", final_ratio},
          {"warmup", warmup},
          {"clip_norm", clip_norm},
          {"beta1", adamw.beta1},
          {"beta2", adamw.beta2},
          {"eps", adamw.eps},
          {"weight_decay", adamw.weight_decay},
          {"seed", fmt::format("{}", seed)},
          {"validation_windows", validation_windows}};
}

TrainOptions TrainOptions::from_json(const nlohmann::json& json) {
  JsonFields fields(json, "train options");
  TrainOptions options;
  options.batch = fields.integer("batch");
  options.context = fields.integer("context");
  options.steps = fields.integer("steps");
  options.learning_rate = fields.number("learning_rate");
  options.final_ratio = fields.number("final_ratio");
  options.warmup = fields.integer("warmup");
  options.clip_norm = fields.number("clip_norm");
  options.adamw.beta1 = fields.number("beta1");
  options.adamw.beta2 = fields.number("beta2");
  options.adamw.eps = fields.number("eps");
  options.adamw.weight_decay = fields.number("weight_decay");
  options.seed = fields.unsigned_text("seed");
  options.validation_windows = fields.integer("validation_windows");
  fields.refuse_unknown();
  options.validate();
  return options;
}

Trainer::Trainer(Gpt2 model, const TrainOptions& options, const TextData& data)
    : options_(options),
      data_(data),
      fingerprint_(data.fingerprint()),
      model_(std::move(model)),
      optimizer_(model_.parameters(), options.adamw),
      batches_(data.train, options.batch, options.context, data_seed(options.seed)),
      job_(std::make_unique<Job>("train")) {
  if (options_.context > model_.config().n_positions) {
    fail("[train] context {} is longer than the model's {} positions", options_.context,
         model_.config().n_positions);
  }
}

Trainer::Trainer(const Gpt2Config& config, const TrainOptions& options, const TextData& data)
    : Trainer(random_model(config, options), options, data) {}

Trainer::Trainer(const CheckpointFile& checkpoint, const TextData& data)
    : Trainer(checkpoint.load_model(), saved_options(checkpoint), data) {
  JsonFields fields(checkpoint.trainer(), "checkpoint " + checkpoint.path() + ": trainer");
  fields.any("options");
  const std::int64_t step = fields.integer("step");
  const std::string fingerprint = fields.text("text");
  const nlohmann::json& cursor = fields.object("data");
  fields.refuse_unknown();
  if (step < 0) fail("[train] the saved step must be at least 0; got {}", step);
  if (fingerprint != fingerprint_) {
    fail(
        "[train] {} was trained on another text ({}; this one is {}): it cannot be continued bit "
        "for bit",
        checkpoint.path(), fingerprint, fingerprint_);
  }
  batches_.restore(cursor);
  checkpoint.load_optimizer(model_, optimizer_);
  optimizer_.set_steps(step);
  step_ = step;
}

void Trainer::set_steps(std::int64_t steps) {
  options_.steps = steps;
  options_.validate();
}

StepResult Trainer::step() {
  // A schedule that is not measured yet is still warming up or at its peak.
  const std::int64_t total = options_.steps > 0 ? options_.steps : INT64_MAX;
  const LearningRate schedule = {options_.learning_rate, options_.final_ratio, options_.warmup,
                                 total};
  const Batch batch = batches_.next();
  Tape tape;
  Gpt2::ForwardOptions forward;
  forward.job = job_.get();
  const Var logits = model_.forward(tape, batch.tokens, options_.batch, options_.context, forward);
  const CrossEntropy loss = cross_entropy(tape, logits, batch.targets);

  StepResult result;
  result.step = step_ + 1;
  result.loss = loss.value;
  result.learning_rate = schedule.at(step_);
  if (!std::isfinite(result.loss)) {
    fail("[train] the loss is {} at step {}; nothing was updated (learning rate {})", result.loss,
         result.step, result.learning_rate);
  }
  tape.backward(loss.loss);
  result.grad_norm = clip_grad_norm(model_.parameters(), options_.clip_norm);
  if (!std::isfinite(result.grad_norm)) {
    for (const Parameter& parameter : model_.parameters()) parameter.var.zero_grad();
    fail(
        "[train] the gradient norm is {} at step {}, loss {}; nothing was updated (learning rate "
        "{})",
        result.grad_norm, result.step, result.loss, result.learning_rate);
  }
  optimizer_.step(result.learning_rate);
  ++step_;
  return result;
}

std::optional<double> Trainer::validation_loss() {
  const std::vector<Batch> batches = sequential_batches(
      data_.validation, options_.batch, options_.context, options_.validation_windows);
  double sum = 0;
  std::int64_t count = 0;
  for (const Batch& batch : batches) {
    Tape tape(Tape::Mode::no_grad);
    Gpt2::ForwardOptions forward;
    forward.job = job_.get();
    const auto tokens = static_cast<std::int64_t>(batch.tokens.size());
    const Var logits =
        model_.forward(tape, batch.tokens, tokens / options_.context, options_.context, forward);
    const CrossEntropy loss = cross_entropy(tape, logits, batch.targets);
    sum += loss.value * static_cast<double>(loss.counted);
    count += loss.counted;
  }
  if (count == 0) return std::nullopt;
  return sum / static_cast<double>(count);
}

void Trainer::save(const std::filesystem::path& path) const {
  const nlohmann::json state = {{"options", options_.to_json()},
                                {"step", step_},
                                {"text", fingerprint_},
                                {"data", batches_.state()}};
  save_checkpoint(path, model_, &optimizer_, state);
}

}  // namespace fovea::lm
