#include "lm/compare.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "lm/error.h"
#include "lm/memory.h"
#include "lm/ops.h"
#include "lm/optim.h"
#include "lm/parallel.h"
#include "lm/train.h"

namespace fovea::lm {
namespace {

using Clock = std::chrono::steady_clock;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

CompareRow measure(const CompareOptions& options, std::int64_t context,
                   const std::string& backend) {
  reset_peak_resident();
  reset_peak_tensor_memory();
  Gpt2Config config;
  config.n_positions = context;
  config.n_embd = options.width;
  config.n_layer = options.layers;
  config.n_head = options.heads;
  config.attention_backend = backend;
  Rng rng(options.seed);
  const Gpt2 model(config, rng);
  AdamW optimizer(model.parameters(), {});
  Job job("compare");

  CompareRow row;
  row.context = context;
  row.backend = backend;
  std::vector<double> times;
  for (std::int64_t step = 0; step <= options.steps; ++step) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(context) + 1);
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(rng.below(256));
    const std::span<const std::int32_t> all(tokens);
    const Clock::time_point start = Clock::now();
    Tape tape;
    Gpt2::ForwardOptions forward;
    forward.job = &job;
    const Var logits = model.forward(tape, all.first(all.size() - 1), 1, context, forward);
    const CrossEntropy loss = cross_entropy(tape, logits, all.subspan(1));
    tape.backward(loss.loss);
    clip_grad_norm(model.parameters(), 1.0);
    optimizer.step(1e-3);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (step > 0) times.push_back(1e3 * seconds);
    row.loss = loss.value;
  }
  row.step_ms = median(std::move(times));
  row.kernels = attention_kernels(job);
  row.tensor_bytes = tensor_memory().peak_bytes;
  row.resident_bytes = peak_resident_bytes();
  return row;
}

}  // namespace

std::vector<CompareRow> compare_attention(const CompareOptions& options) {
  if (options.steps < 1) fail("[compare] steps must be at least 1; got {}", options.steps);
  std::vector<CompareRow> rows;
  for (const std::int64_t context : options.contexts) {
    for (const std::string& backend : options.backends) {
      if (options.log) options.log(fmt::format("measuring {} at context {}", backend, context));
      rows.push_back(measure(options, context, backend));
    }
  }
  return rows;
}

std::string compare_table(const CompareOptions& options, const std::vector<CompareRow>& rows) {
  constexpr double kMegabyte = 1024.0 * 1024.0;
  std::string text = fmt::format(
      "GPT-2, {} layers, {} heads of {}, batch 1, {} threads; median of {} training steps\n"
      "tensors: peak of live tensors with attention workspaces; resident: peak of the process\n\n"
      "{:>8}  {:<8} {:>12} {:>9} {:>12} {:>12} {:>10}  {}\n",
      options.layers, options.heads, options.width / options.heads, num_threads(), options.steps,
      "context", "backend", "ms per step", "speed-up", "tensors MB", "resident MB", "loss",
      "kernels");
  for (const CompareRow& row : rows) {
    const auto base = std::find_if(rows.begin(), rows.end(), [&](const CompareRow& other) {
      return other.context == row.context;
    });
    text += fmt::format("{:>8}  {:<8} {:>12.1f} {:>8.2f}x {:>12.1f} {:>12.1f} {:>10.6f}  {}\n",
                        row.context, row.backend, row.step_ms, base->step_ms / row.step_ms,
                        static_cast<double>(row.tensor_bytes) / kMegabyte,
                        static_cast<double>(row.resident_bytes) / kMegabyte, row.loss, row.kernels);
  }
  return text;
}

}  // namespace fovea::lm
