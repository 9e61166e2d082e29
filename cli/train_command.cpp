// fovea train: trains a byte-level GPT-2, or compares attention backends in training.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <fovea/fovea.h>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/stop_signals.h"
#include "cli/validators.h"
#include "io/atomic_file.h"
#include "lm/compare.h"
#include "lm/error.h"
#include "lm/gemm.h"
#include "lm/generate.h"
#include "lm/parallel.h"
#include "lm/tokenizer.h"
#include "lm/train.h"

namespace fovea::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kSignalled = 128;  // plus the signal, as shells report it

struct Settings {
  std::vector<std::string> paths;
  std::string out = "checkpoint";
  bool resume = false;
  bool overwrite = false;
  bool compare = false;
  int threads = 0;
  std::int64_t sample_bytes = 0;
  lm::Gpt2Config model;
  lm::TrainOptions train;
  lm::TextOptions text;
  lm::TrainLoop loop;
  lm::CompareOptions comparison;
};

// A terminal that is gone is no reason to lose the run.
void progress(std::string_view line) { std::fputs(fmt::format("{}\n", line).c_str(), stderr); }

std::string beyond(std::int64_t stop_at, std::int64_t steps) {
  return fmt::format("--stop-at {} lies beyond the {} steps of the schedule", stop_at, steps);
}

void print_sample(const lm::Trainer& trainer, std::int64_t bytes) {
  lm::GenerateOptions options;
  options.max_tokens = bytes;
  options.stop = lm::ByteTokenizer::kEndOfText;
  options.sample.top_p = 0.95;
  const std::vector<std::int32_t> prompt = lm::ByteTokenizer::encode("\n");
  fmt::print("--- sample ---\n{}\n--- end of sample ---\n",
             lm::ByteTokenizer::decode(lm::generate(trainer.model(), prompt, options)));
}

int compare(Settings& settings) {
  settings.comparison.log = progress;
  const std::vector<lm::CompareRow> rows = lm::compare_attention(settings.comparison);
  fmt::print("{}", lm::compare_table(settings.comparison, rows));
  return kSuccess;
}

int train(Settings& settings, StopSignals& signals) {
  // Proof lines come at the end, below the progress, rather than between its lines.
  std::vector<std::string> proof;
  set_proof_level(ProofLevel::proof);
  set_proof_sink([&proof](std::string_view line) { proof.emplace_back(line); });
  struct RestoreSink {
    ~RestoreSink() { set_proof_sink({}); }
  } const restore;

  const lm::TextData data =
      lm::load_text({settings.paths.begin(), settings.paths.end()}, settings.text);
  progress(fmt::format("text: {} files, {} bytes for training, {} for validation, {} skipped",
                       data.files.size(), data.train.size(), data.validation.size(), data.skipped));
  const auto trainer =
      settings.resume
          ? std::make_unique<lm::Trainer>(lm::CheckpointFile(settings.loop.checkpoint), data)
          : std::make_unique<lm::Trainer>(settings.model, settings.train, data);
  const std::int64_t steps = trainer->options().steps;
  if (steps > 0 && settings.loop.stop_at > steps) {
    return complain("train", beyond(settings.loop.stop_at, steps), kUsage);
  }
  std::error_code error;
  fs::create_directories(settings.out, error);
  if (error) lm::fail("[train] cannot create folder {}: {}", settings.out, error.message());
  throw_if_error(io::check_writable(settings.loop.checkpoint.string()));

  const lm::Gpt2Config& config = trainer->model().config();
  progress(fmt::format(
      "model: GPT-2, {} parameters, {} layers, {} heads of {}, context {}; attention {}",
      trainer->model().parameter_count(), config.n_layer, config.n_head, config.head_dim(),
      trainer->options().context, config.attention_backend));
  progress(fmt::format("machine: {} threads, matrix products by {}", lm::num_threads(),
                       lm::gemm_description()));
  progress(
      "columns: losses in nats per byte, since the line before; mem: peak in tensors / peak "
      "resident (VmHWM)");

  settings.loop.interrupted = [&signals] { return signals.noted() != 0; };
  settings.loop.log = progress;
  signals.defer(true);
  const lm::TrainEnd end = lm::run_training(*trainer, settings.loop);
  signals.defer(false);
  switch (end) {
    case lm::TrainEnd::finished:
      progress("finished the schedule");
      break;
    case lm::TrainEnd::interrupted:
      progress("interrupted");
      break;
    case lm::TrainEnd::time_limit:
      progress("stopped at the time limit");
      break;
    case lm::TrainEnd::stopped:
      progress("stopped at the wanted step");
      break;
  }
  progress(
      fmt::format("saved {} at step {}", settings.loop.checkpoint.string(), trainer->steps_done()));
  if (signals.noted() != 0) return kSignalled + signals.noted();
  if (settings.sample_bytes > 0) print_sample(*trainer, settings.sample_bytes);
  for (const std::string& line : proof) fmt::print("{}\n", line);
  return kSuccess;
}

// Options that define a run belong to its checkpoint: giving them with --resume is refused.
void add_run_options(CLI::App& command, Settings& s, CLI::Option* resume) {
  const auto defining = [&](CLI::Option* option) {
    return option->capture_default_str()->excludes(resume);
  };
  using lm::Gpt2Config;
  using lm::TrainOptions;
  const auto count = [&](const char* name, std::int64_t& to, CLI::Range range, const char* help) {
    defining(command.add_option(name, to, help))->check(range);
  };
  const auto from_to = [](std::int64_t least, std::int64_t most) {
    return CLI::Range(least, most);
  };
  const CLI::Validator not_negative =
      number("NUMBER >= 0", [](double x) { return x >= 0 && std::isfinite(x); });
  const CLI::Validator decay = number("NUMBER in [0, 1)", [](double x) { return x >= 0 && x < 1; });
  lm::Gpt2Config& model = s.model;
  count("--layers", model.n_layer, from_to(1, Gpt2Config::kMostLayers),
        "Transformer blocks (default with --compare: 2)");
  count("--heads", model.n_head, from_to(1, Gpt2Config::kMostWidth),
        "Attention heads (default with --compare: 2)");
  count("--width", model.n_embd, from_to(1, Gpt2Config::kMostWidth),
        "Width of the residual stream (default with --compare: 128)");
  defining(command
               .add_option("--attention-backend", model.attention_backend,
                           "Attention kernels; stored in the model's configuration")
               ->check(CLI::IsMember({"unfused", "flash", "auto"})));
  lm::TrainOptions& t = s.train;
  count("--context", t.context, from_to(1, TrainOptions::kMost), "Tokens (bytes) per window");
  count("--batch", t.batch, from_to(1, TrainOptions::kMost), "Windows per step");
  defining(command.add_option("--steps", t.steps,
                              "Length of the schedule; 0 fits it to --seconds by the first steps"))
      ->check(at_least(0));
  defining(command.add_option("--lr", t.learning_rate, "Peak learning rate"))
      ->check(number("NUMBER > 0", [](double x) { return x > 0 && std::isfinite(x); }));
  defining(command.add_option("--final-lr", t.final_ratio, "Last learning rate over the peak"))
      ->check(number("NUMBER in [0, 1]", [](double x) { return x >= 0 && x <= 1; }));
  defining(command.add_option("--warmup", t.warmup, "Steps of linear warm-up"))->check(at_least(0));
  defining(command.add_option("--clip", t.clip_norm, "Largest gradient norm; 0 = no clipping"))
      ->check(number("NUMBER >= 0", [](double x) { return x >= 0; }));
  defining(command.add_option("--weight-decay", t.adamw.weight_decay,
                              "Decoupled decay of the weight matrices"))
      ->check(not_negative);
  defining(command.add_option("--beta1", t.adamw.beta1, "AdamW: decay of the first moment"))
      ->check(decay);
  defining(command.add_option("--beta2", t.adamw.beta2, "AdamW: decay of the second moment"))
      ->check(decay);
  defining(command.add_option("--seed", t.seed, "Seed of weights and data order"))
      ->check(seed_value());
  count("--validation-windows", t.validation_windows, from_to(0, TrainOptions::kMost),
        "Most windows of one validation pass");
}

void add_session_options(CLI::App& command, Settings& s) {
  const auto count = [&](const char* name, auto& to, std::int64_t least, const char* help) {
    command.add_option(name, to, help)->check(at_least(least))->capture_default_str();
  };
  command.add_option("--seconds", s.loop.seconds, "Stop and save after this time; 0 = no limit")
      ->check(number("NUMBER >= 0", [](double x) { return x >= 0; }))
      ->capture_default_str();
  count("--stop-at", s.loop.stop_at, 0, "Stop and save at this step; 0 = at the end");
  count("--log-every", s.loop.log_every, 1, "Steps between progress lines");
  count("--validate-every", s.loop.validate_every, 0, "Steps between validation passes; 0 = never");
  count("--save-every", s.loop.save_every, 0, "Steps between saves; 0 = at the end only");
  count("--sample", s.sample_bytes, 0, "Bytes of sampled text to print at the end");
  command
      .add_option(
          "--threads", s.threads,
          "Threads; 0 = FOVEA_NUM_THREADS, else the usable cores. Results do not depend on it")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

void add_compare_options(CLI::App& command, Settings& s) {
  CLI::Option* compare =
      command.add_flag("--compare", s.compare,
                       "Train on nothing: print time per step and peak memory of unfused against "
                       "flash attention");
  // The model, its seed and the threads hold for the comparison too; nothing else does.
  const std::set<std::string> shared = {"--help",  "--layers", "--heads",
                                        "--width", "--seed",   "--threads"};
  for (CLI::Option* option : command.get_options()) {
    if (option != compare && !shared.contains(option->get_name())) option->excludes(compare);
  }
  lm::CompareOptions& comparison = s.comparison;
  command
      .add_option("--compare-contexts", comparison.contexts,
                  "Contexts to compare at, separated by commas")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{1}, lm::TrainOptions::kMost))
      ->needs(compare)
      ->capture_default_str();
  command.add_option("--compare-steps", comparison.steps, "Steps measured for each row")
      ->check(at_least(1))
      ->needs(compare)
      ->capture_default_str();
}

/// What was given of the options that --compare shares.
void take_shared(const CLI::App& command, Settings& s) {
  const auto take = [&](const char* name, const auto& from, auto& to) {
    if (command.count(name) > 0) to = from;
  };
  take("--layers", s.model.n_layer, s.comparison.layers);
  take("--heads", s.model.n_head, s.comparison.heads);
  take("--width", s.model.n_embd, s.comparison.width);
  take("--seed", s.train.seed, s.comparison.seed);
}

/// What is wrong with the options together; empty: nothing.
std::string wrong_usage(const Settings& s) {
  constexpr std::int64_t kMostHeadDim = lm::Gpt2Config::kMostHeadDim;
  const std::int64_t heads = s.compare ? s.comparison.heads : s.model.n_head;
  const std::int64_t width = s.compare ? s.comparison.width : s.model.n_embd;
  if (width % heads != 0 || width / heads > kMostHeadDim) {
    return fmt::format("--heads must divide --width into heads of at most {}; got {} and {}",
                       kMostHeadDim, heads, width);
  }
  if (s.compare) return "";
  if (s.paths.empty()) return "no text: name files or folders with --data";
  if (s.resume) return "";
  if (s.train.steps == 0 && s.loop.seconds == 0) return "--steps 0 needs --seconds";
  if (s.train.steps > 0 && s.loop.stop_at > s.train.steps) {
    return beyond(s.loop.stop_at, s.train.steps);
  }
  std::error_code error;
  if (!s.overwrite && fs::exists(s.loop.checkpoint, error)) {
    return fmt::format("{} exists: continue it with --resume or replace it with --overwrite",
                       s.loop.checkpoint.string());
  }
  return "";
}

}  // namespace

void add_train_command(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<Settings>();
  CLI::App* command = app.add_subcommand(
      "train",
      "Train a byte-level GPT-2 on text, natively\n"
      "Progress goes to stderr; sample, table and proof lines to stdout. Ctrl-C finishes the step, "
      "saves, and exits with 130 (SIGTERM: 143, SIGHUP: 129); a second Ctrl-C ends it at once.");
  command->add_option("--data", settings->paths,
                      "Text files, and folders that are searched for text");
  command->add_option("--out", settings->out, "Folder of checkpoint.safetensors")
      ->capture_default_str();
  command
      ->add_option("--extensions", settings->text.extensions,
                   "File name endings taken from folders, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option("--validation-fraction", settings->text.validation_fraction,
                   "Share of the text kept for validation, 0 to 0.5")
      ->check(number("NUMBER in [0, 0.5]", [](double x) { return x >= 0 && x <= 0.5; }))
      ->capture_default_str();
  CLI::Option* resume = command->add_flag("--resume", settings->resume,
                                          "Continue the run saved in --out, bit for bit");
  command->add_flag("--overwrite", settings->overwrite, "Replace a checkpoint in --out")
      ->excludes(resume);
  add_run_options(*command, *settings, resume);
  add_session_options(*command, *settings);
  add_compare_options(*command, *settings);

  command->callback([settings, command, &exit_code] {
    take_shared(*command, *settings);
    settings->loop.checkpoint = fs::path(settings->out) / "checkpoint.safetensors";
    if (const std::string wrong = wrong_usage(*settings); !wrong.empty()) {
      exit_code = complain("train", wrong, kUsage);
      return;
    }
    try {
      StopSignals signals;  // before any thread that computes
      lm::set_num_threads(settings->threads);
      settings->model.n_positions = settings->train.context;
      exit_code = settings->compare ? compare(*settings) : train(*settings, signals);
    } catch (const std::exception& error) {
      exit_code = complain("train", error.what(), kFailure);
    }
  });
}

}  // namespace fovea::cli
