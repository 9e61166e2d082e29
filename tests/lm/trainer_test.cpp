#include <cmath>

#include <nlohmann/json.hpp>

#include "lm/compare.h"
#include "lm/parallel.h"
#include "lm/train.h"
#include "tests/lm/support.h"

namespace fovea::lm {
namespace {

using test::read_file;
using test::ScratchFolder;

// Text with some structure, so that there is something to learn.
TextData text() {
  std::vector<std::uint8_t> bytes;
  Rng rng(8);
  const std::vector<std::string> words = {"attention ", "softmax ", "flash ",  "query ",
                                          "key ",       "value ",   "fovea\n", "exact "};
  while (bytes.size() < 6000) {
    const std::string& word = words[rng.below(words.size())];
    bytes.insert(bytes.end(), word.begin(), word.end());
  }
  return split_text(std::move(bytes), 0.1);
}

Gpt2Config small(const std::string& backend = "auto") {
  Gpt2Config config;
  config.n_positions = 48;
  config.n_embd = 32;
  config.n_layer = 2;
  config.n_head = 2;
  config.attention_backend = backend;
  return config;
}

TrainOptions options() {
  TrainOptions options;
  options.batch = 3;
  options.context = 48;
  options.steps = 50;
  options.warmup = 5;
  options.learning_rate = 3e-3;
  return options;
}

std::vector<std::vector<float>> weights_and_moments(const Trainer& trainer) {
  std::vector<std::vector<float>> all;
  for (std::size_t i = 0; i < trainer.model().parameters().size(); ++i) {
    all.push_back(test::values_of(trainer.model().parameters()[i].var.value()));
    all.push_back(test::values_of(trainer.optimizer().first_moment(i)));
    all.push_back(test::values_of(trainer.optimizer().second_moment(i)));
  }
  return all;
}

TEST(Trainer, I8_flash_and_unfused_agree_at_each_of_50_steps) {
  const TextData data = text();
  Trainer flash(small("flash"), options(), data);
  Trainer unfused(small("unfused"), options(), data);
  double first = 0;
  double last = 0;
  for (int step = 1; step <= 50; ++step) {
    const double a = flash.step().loss;
    const double b = unfused.step().loss;
    EXPECT_LE(std::abs(a - b), 1e-5 * b) << "step " << step << ": " << a << " and " << b;
    if (step == 1) first = a;
    last = a;
  }
  EXPECT_NE(attention_kernels(flash.job()), attention_kernels(unfused.job()));
  EXPECT_NEAR(first, std::log(256), 0.1);
  EXPECT_LT(last, 0.7 * first);
}

TEST(Trainer, resume_at_step_25_gives_the_bits_of_the_unbroken_run) {
  const TextData data = text();
  const ScratchFolder folder;
  Trainer whole(small(), options(), data);
  std::vector<double> losses;
  for (int step = 0; step < 50; ++step) losses.push_back(whole.step().loss);

  const std::filesystem::path file = folder / "c.safetensors";
  {
    Trainer first(small(), options(), data);
    TrainLoop loop;
    loop.checkpoint = file;
    loop.stop_at = 25;
    EXPECT_EQ(run_training(first, loop), TrainEnd::stopped);
  }
  set_num_threads(3);
  Trainer resumed(CheckpointFile(file), data);
  set_num_threads(0);
  EXPECT_EQ(resumed.steps_done(), 25);
  for (std::size_t step = 25; step < 50; ++step) {
    EXPECT_EQ(resumed.step().loss, losses[step]) << "step " << step + 1;
  }
  EXPECT_EQ(weights_and_moments(resumed), weights_and_moments(whole));
  EXPECT_EQ(resumed.validation_loss(), whole.validation_loss());
  whole.save(folder / "whole");
  resumed.save(folder / "resumed");
  EXPECT_EQ(read_file(folder / "whole"), read_file(folder / "resumed"));
}

TEST(Trainer, bits_do_not_depend_on_the_number_of_threads) {
  const TextData data = text();
  std::vector<std::vector<float>> first;
  for (const int threads : {1, 2, 5}) {
    set_num_threads(threads);
    Trainer trainer(small(), options(), data);
    for (int step = 0; step < 5; ++step) trainer.step();
    const auto all = weights_and_moments(trainer);
    if (first.empty()) first = all;
    EXPECT_EQ(all, first) << threads << " threads";
  }
  set_num_threads(0);
}

TEST(Trainer, another_text_or_missing_state_cannot_be_resumed) {
  const TextData data = text();
  const ScratchFolder folder;
  Trainer trainer(small(), options(), data);
  trainer.save(folder / "c");
  TextData other = data;
  other.train[100] ^= 1;
  EXPECT_ERROR_HAS(Trainer(CheckpointFile(folder / "c"), other), "another text");
  save_checkpoint(folder / "weights", trainer.model(), nullptr, nullptr);
  EXPECT_ERROR_HAS(Trainer(CheckpointFile(folder / "weights"), data),
                   "no training state to resume");
}

TEST(Trainer, damaged_trainer_state_is_refused) {
  const TextData data = text();
  const ScratchFolder folder;
  Trainer trainer(small(), options(), data);
  trainer.save(folder / "c");
  const nlohmann::json good = CheckpointFile(folder / "c").trainer();
  const auto with = [&](const nlohmann::json::json_pointer& where, nlohmann::json value) {
    nlohmann::json state = good;
    state[where] = std::move(value);
    const AdamW optimizer(trainer.model().parameters(), {});
    save_checkpoint(folder / "c", trainer.model(), &optimizer, state);
    Trainer(CheckpointFile(folder / "c"), data);
  };
  using Pointer = nlohmann::json::json_pointer;
  EXPECT_ERROR_HAS(with(Pointer("/step"), -1), "got -1");
  EXPECT_ERROR_HAS(with(Pointer("/step"), "25"), "'step' must be a 64-bit integer");
  EXPECT_ERROR_HAS(with(Pointer("/options/batch"), 0), "batch must be 1");
  EXPECT_ERROR_HAS(with(Pointer("/options/context"), 49), "longer than the model's 48");
  EXPECT_ERROR_HAS(with(Pointer("/options/seed"), 1), "'seed' must be a string");
  EXPECT_ERROR_HAS(with(Pointer("/options/learning_rate"), nullptr), "must be a number");
  EXPECT_ERROR_HAS(with(Pointer("/data/position"), 1 << 30), "position 0 to");
  EXPECT_ERROR_HAS(with(Pointer("/data/epoch_rng"), ""), "hexadecimal");
  EXPECT_ERROR_HAS(with(Pointer("/extra"), 1), "unknown key 'extra'");
}

TEST(Trainer, bad_options_are_named) {
  const TextData data = text();
  const auto with = [&](auto change) {
    TrainOptions changed = options();
    change(changed);
    Trainer(small(), changed, data);
  };
  EXPECT_ERROR_HAS(with([](TrainOptions& o) { o.context = 49; }),
                   "context 49 is longer than the model's 48 positions");
  EXPECT_ERROR_HAS(with([](TrainOptions& o) { o.batch = 1000; }), "shorter than one batch");
  EXPECT_ERROR_HAS(with([](TrainOptions& o) { o.steps = -1; }), "got -1");
  EXPECT_ERROR_HAS(with([](TrainOptions& o) { o.clip_norm = NAN; }), "got nan");
  EXPECT_ERROR_HAS(with([](TrainOptions& o) { o.learning_rate = -1; }), "got -1");
}

TEST(Trainer, non_finite_loss_stops_before_the_update) {
  const TextData data = text();
  Trainer trainer(small(), options(), data);
  trainer.step();
  const Parameter& gain = trainer.model().parameters().back();
  gain.var.value().data()[0] = NAN;
  const auto before = weights_and_moments(trainer);
  EXPECT_ERROR_HAS(trainer.step(), "the loss is nan at step 2; nothing was updated");
  EXPECT_EQ(trainer.steps_done(), 1);
  EXPECT_EQ(trainer.optimizer().steps(), 1);
  EXPECT_EQ(test::values_of(trainer.model().parameters()[0].var.value()), before[0]);
}

TEST(RunTraining, finishes_saves_and_prints_one_line_each_time) {
  const TextData data = text();
  const ScratchFolder folder;
  TrainOptions few = options();
  few.steps = 12;
  Trainer trainer(small(), few, data);
  TrainLoop loop;
  loop.checkpoint = folder / "c";
  loop.log_every = 5;
  loop.validate_every = 10;
  loop.save_every = 4;
  std::vector<std::string> lines;
  loop.log = [&](std::string_view line) { lines.emplace_back(line); };
  EXPECT_EQ(run_training(trainer, loop), TrainEnd::finished);
  ASSERT_EQ(lines.size(), 4U);  // 1, 5, 10, 12
  EXPECT_NE(lines[2].find("step    10/12"), std::string::npos) << lines[2];
  EXPECT_EQ(lines[2].find("val -"), std::string::npos) << lines[2];
  EXPECT_NE(lines[3].find(attention_kernels(trainer.job())), std::string::npos) << lines[3];
  EXPECT_EQ(CheckpointFile(folder / "c").trainer()["step"], 12);
  // Nothing is left to do.
  EXPECT_EQ(run_training(trainer, loop), TrainEnd::finished);
  EXPECT_EQ(lines.size(), 4U);
}

TEST(RunTraining, interruption_finishes_the_step_and_saves) {
  const TextData data = text();
  const ScratchFolder folder;
  Trainer trainer(small(), options(), data);
  TrainLoop loop;
  loop.checkpoint = folder / "c";
  int asked = 0;
  loop.interrupted = [&] { return ++asked == 3; };
  EXPECT_EQ(run_training(trainer, loop), TrainEnd::interrupted);
  EXPECT_EQ(trainer.steps_done(), 3);
  EXPECT_EQ(Trainer(CheckpointFile(folder / "c"), data).steps_done(), 3);
}

TEST(RunTraining, time_limit_stops_and_saves) {
  const TextData data = text();
  const ScratchFolder folder;
  TrainOptions many = options();
  many.steps = 1000000;
  Trainer trainer(small(), many, data);
  TrainLoop loop;
  loop.checkpoint = folder / "c";
  loop.seconds = 0.2;
  EXPECT_EQ(run_training(trainer, loop), TrainEnd::time_limit);
  EXPECT_EQ(CheckpointFile(folder / "c").trainer()["step"], trainer.steps_done());
}

TEST(RunTraining, a_schedule_is_fitted_to_the_time_and_saved) {
  const TextData data = text();
  const ScratchFolder folder;
  TrainOptions fitted = options();
  fitted.steps = 0;
  Trainer trainer(small(), fitted, data);
  TrainLoop loop;
  loop.checkpoint = folder / "c";
  // Far more than twenty steps need, on any machine and under any sanitizer.
  loop.seconds = 600;
  loop.stop_at = 20;
  EXPECT_EQ(run_training(trainer, loop), TrainEnd::stopped);
  EXPECT_GT(trainer.options().steps, 20);
  EXPECT_EQ(Trainer(CheckpointFile(folder / "c"), data).options().steps, trainer.options().steps);
  Trainer endless(small(), fitted, data);
  loop.seconds = 0;
  EXPECT_ERROR_HAS(run_training(endless, loop), "none is given (seconds 0)");
}

TEST(CompareAttention, one_row_for_each_context_and_backend) {
  CompareOptions small_options;
  small_options.contexts = {64, 96};
  small_options.layers = 1;
  small_options.width = 32;
  small_options.steps = 1;
  const std::vector<CompareRow> rows = compare_attention(small_options);
  ASSERT_EQ(rows.size(), 4U);
  for (std::size_t i = 0; i < 4; i += 2) {
    EXPECT_EQ(rows[i].backend, "unfused");
    EXPECT_EQ(rows[i + 1].backend, "flash");
    EXPECT_NEAR(rows[i].loss, rows[i + 1].loss, 1e-5 * rows[i].loss);
    EXPECT_NE(rows[i].kernels, rows[i + 1].kernels);
    EXPECT_GT(rows[i].tensor_bytes, 0);
    EXPECT_GT(rows[i].resident_bytes, 0);
  }
  EXPECT_NE(compare_table(small_options, rows).find("flash"), std::string::npos);
}

}  // namespace
}  // namespace fovea::lm
