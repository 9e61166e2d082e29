// fovea generate: samples text from a checkpoint.
#include <chrono>
#include <cmath>
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
#include "cli/validators.h"
#include "lm/checkpoint.h"
#include "lm/error.h"
#include "lm/generate.h"
#include "lm/parallel.h"
#include "lm/tokenizer.h"
#include "lm/train.h"

namespace fovea::cli {
namespace {

struct Settings {
  std::string checkpoint = "checkpoint";
  std::string prompt = "\n";
  std::string attention_backend;
  int threads = 0;
  bool stop_at_end = false;
  bool stats = false;
  lm::GenerateOptions generate;
};

void run(Settings& settings) {
  std::filesystem::path path = settings.checkpoint;
  if (std::filesystem::is_directory(path)) path /= "checkpoint.safetensors";
  const lm::CheckpointFile file(path);
  if (file.config().vocab_size != lm::ByteTokenizer::kVocabulary) {
    lm::fail("[generate] a byte-level model has a vocabulary of {}; {} has {}",
             lm::ByteTokenizer::kVocabulary, path.string(), file.config().vocab_size);
  }
  lm::Gpt2 model = file.load_model();
  if (!settings.attention_backend.empty()) model.set_attention_backend(settings.attention_backend);

  Job job("generate");
  settings.generate.job = &job;
  if (settings.stop_at_end) settings.generate.stop = lm::ByteTokenizer::kEndOfText;
  settings.generate.on_token = [](std::int32_t token) {
    std::fputc(token, stdout);
    std::fflush(stdout);
  };
  const std::vector<std::int32_t> prompt = lm::ByteTokenizer::encode(settings.prompt);
  lm::check_prompt(model, prompt);
  fmt::print("{}", settings.prompt);
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::int32_t> text = lm::generate(model, prompt, settings.generate);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("\n");
  if (std::fflush(stdout) != 0) lm::fail("[generate] cannot write to standard output");
  if (settings.stats) {
    fmt::print(stderr, "{} tokens in {:.2f} s, {:.0f} tokens/s, attention {}\n", text.size(),
               seconds, static_cast<double>(text.size()) / seconds, lm::attention_kernels(job));
  }
}

}  // namespace

void add_generate_command(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<Settings>();
  CLI::App* command =
      app.add_subcommand("generate",
                         "Generate text from a checkpoint of fovea train\n"
                         "The text goes to stdout. When it outgrows the model's context, it goes "
                         "on from its last half "
                         "context, read anew; a prompt longer than the context is refused.");
  command
      ->add_option("--checkpoint", settings->checkpoint,
                   "A .safetensors checkpoint, or the --out folder of fovea train")
      ->capture_default_str();
  command->add_option("--prompt", settings->prompt, "Text to continue (default: a line break)");
  command->add_option("--tokens", settings->generate.max_tokens, "Tokens (bytes) to generate")
      ->check(at_least(0))
      ->capture_default_str();
  lm::SampleOptions& sample = settings->generate.sample;
  command->add_option("--temperature", sample.temperature, "0 = always the likeliest token")
      ->check(number("NUMBER >= 0", [](double x) { return x >= 0 && std::isfinite(x); }))
      ->capture_default_str();
  command->add_option("--top-k", sample.top_k, "Only the k likeliest tokens; 0 = all")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--top-p", sample.top_p, "Only the likeliest tokens that together reach p")
      ->check(number("NUMBER in (0, 1]", [](double x) { return x > 0 && x <= 1; }))
      ->capture_default_str();
  command->add_option("--seed", settings->generate.seed, "Seed of the sampling")
      ->check(seed_value())
      ->capture_default_str();
  command->add_flag("--stop", settings->stop_at_end, "Stop at the end of a document");
  command
      ->add_option("--attention-backend", settings->attention_backend,
                   "Attention kernels instead of the checkpoint's choice")
      ->check(CLI::IsMember({"unfused", "flash", "auto"}));
  command
      ->add_option("--threads", settings->threads,
                   "Threads; 0 = FOVEA_NUM_THREADS, else the usable cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_flag("--stats", settings->stats, "Print speed and attention kernels to stderr");

  command->callback([settings, &exit_code] {
    try {
      lm::set_num_threads(settings->threads);
      run(*settings);
      exit_code = kSuccess;
    } catch (const std::exception& error) {
      std::fflush(stdout);
      exit_code = complain("generate", error.what(), kFailure);
    }
  });
}

}  // namespace fovea::cli
