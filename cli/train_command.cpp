// fovea train: trains a byte-level GPT-2, or compares attention backends in
// training.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <fovea/fovea.h>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/stop_signals.h"
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
  const fs::path folder = settings.out;
  settings.loop.checkpoint = folder / "checkpoint.safetensors";

  // Proof lines come at the end, below the progress, rather than between its
  // lines.
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
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) lm::fail("[train] cannot create folder {}: {}", folder.string(), error.message());

  const lm::Gpt2Config& config = trainer->model().config();
  progress(
      fmt::format("model: GPT-2, {} parameters, {} layers, {} heads of "
                  "{}, context {}; attention {}",
                  trainer->model().parameter_count(), config.n_layer, config.n_head,
                  config.head_dim(), trainer->options().context, config.attention_backend));
  progress(fmt::format("machine: {} threads, matrix products by {}", lm::num_threads(),
                       lm::gemm_description()));
  progress(
      "columns: losses in nats per byte, since the line before; mem: peak "
      "in tensors / peak "
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

// Options that define a run belong to its checkpoint: giving them with --resume
// is refused.
void add_run_options(CLI::App& command, Settings& s, CLI::Option* resume) {
  const auto defining = [&](CLI::Option* option) {
    option->capture_default_str()->excludes(resume);
  };
  lm::Gpt2Config& model = s.model;
  defining(command.add_option("--layers", model.n_layer, "Transformer blocks"));
  defining(command.add_option("--heads", model.n_head, "Attention heads"));
  defining(command.add_option("--width", model.n_embd, "Width of the residual stream"));
  defining(command
               .add_option("--attention-backend", model.attention_backend,
                           "Attention kernels; stored in the model's configuration")
               ->check(CLI::IsMember({"unfused", "flash", "auto"})));
  lm::TrainOptions& t = s.train;
  defining(command.add_option("--context", t.context, "Tokens (bytes) per window"));
  defining(command.add_option("--batch", t.batch, "Windows per step"));
  defining(command.add_option("--steps", t.steps,
                              "Length of the schedule; 0 fits it to --seconds by the first steps"));
  defining(command.add_option("--lr", t.learning_rate, "Peak learning rate"));
  defining(command.add_option("--final-lr", t.final_ratio, "Last learning rate over the peak"));
  defining(command.add_option("--warmup", t.warmup, "Steps of linear warm-up"));
  defining(command.add_option("--clip", t.clip_norm, "Largest gradient norm; 0 = no clipping"));
  defining(command.add_option("--weight-decay", t.adamw.weight_decay,
                              "Decoupled decay of the weight matrices"));
  defining(command.add_option("--beta1", t.adamw.beta1, "AdamW: decay of the first moment"));
  defining(command.add_option("--beta2", t.adamw.beta2, "AdamW: decay of the second moment"));
  defining(command.add_option("--seed", t.seed, "Seed of weights and data order"));
  defining(command.add_option("--validation-windows", t.validation_windows,
                              "Most windows of one validation pass"));
}

void add_session_options(CLI::App& command, Settings& s) {
  command.add_option("--seconds", s.loop.seconds, "Stop and save after this time; 0 = no limit")
      ->capture_default_str();
  command.add_option("--stop-at", s.loop.stop_at, "Stop and save at this step; 0 = at the end")
      ->capture_default_str();
  command.add_option("--log-every", s.loop.log_every, "Steps between progress lines")
      ->capture_default_str();
  command
      .add_option("--validate-every", s.loop.validate_every,
                  "Steps between validation passes; 0 = never")
      ->capture_default_str();
  command.add_option("--save-every", s.loop.save_every, "Steps between saves; 0 = at the end only")
      ->capture_default_str();
  command.add_option("--sample", s.sample_bytes, "Bytes of sampled text to print at the end")
      ->capture_default_str();
  command
      .add_option("--threads", s.threads,
                  "Threads; 0 = FOVEA_NUM_THREADS, else the usable cores. "
                  "Results do not depend on it")
      ->capture_default_str();
}

}  // namespace

void add_train_command(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<Settings>();
  CLI::App* command =
      app.add_subcommand("train",
                         "Train a byte-level GPT-2 on text, natively\n"
                         "Progress goes to stderr; sample, table and proof lines to "
                         "stdout. Ctrl-C finishes the step, "
                         "saves, and exits with 130 (SIGTERM: 143, SIGHUP: 129); a "
                         "second Ctrl-C ends it at once.");
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
      ->capture_default_str();
  CLI::Option* resume = command->add_flag("--resume", settings->resume,
                                          "Continue the run saved in --out, bit for bit");
  add_run_options(*command, *settings, resume);
  add_session_options(*command, *settings);

  lm::CompareOptions& comparison = settings->comparison;
  CLI::Option* compare_flag =
      command->add_flag("--compare", settings->compare,
                        "Train on nothing: print time per step and peak memory "
                        "of unfused against "
                        "flash attention");
  command
      ->add_option("--compare-contexts", comparison.contexts,
                   "Contexts to compare at, separated by commas")
      ->delimiter(',')
      ->needs(compare_flag)
      ->capture_default_str();
  command->add_option("--compare-steps", comparison.steps, "Steps measured for each row")
      ->needs(compare_flag)
      ->capture_default_str();

  command->callback([settings, &exit_code] {
    if (!settings->compare && settings->paths.empty()) {
      throw CLI::ValidationError("train", "no text: name files or folders with --data");
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
