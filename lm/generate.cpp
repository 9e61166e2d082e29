#include "lm/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lm/error.h"

namespace fovea::lm {

void SampleOptions::validate() const {
  if (!(temperature >= 0) || !std::isfinite(temperature)) {
    fail("[generate] temperature must be at least 0; got {}", temperature);
  }
  if (top_k < 0) fail("[generate] top_k must be at least 0; got {}", top_k);
  if (!(top_p > 0 && top_p <= 1)) {
    fail("[generate] top_p must be above 0 and at most 1; got {}", top_p);
  }
}

std::int32_t sample_token(std::span<const float> logits, const SampleOptions& options, Rng& rng) {
  options.validate();
  if (logits.empty()) fail("[generate] there are no logits");
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == INFINITY) {
      fail("[generate] the logit of token {} is {}", i, logits[i]);
    }
  }
  if (options.temperature == 0) {
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) -
                                     logits.begin());
  }
  std::vector<std::int32_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto logit = [&](std::int32_t token) { return logits[static_cast<std::size_t>(token)]; };
  std::stable_sort(tokens.begin(), tokens.end(),
                   [&](std::int32_t a, std::int32_t b) { return logit(a) > logit(b); });
  if (options.top_k > 0 && options.top_k < static_cast<std::int64_t>(tokens.size())) {
    tokens.resize(static_cast<std::size_t>(options.top_k));
  }
  if (logit(tokens[0]) == -INFINITY) fail("[generate] every logit is -inf");

  std::vector<double> weights;
  double total = 0;
  for (const std::int32_t token : tokens) {
    const double below = static_cast<double>(logit(token)) - static_cast<double>(logit(tokens[0]));
    weights.push_back(std::exp(below / options.temperature));
    total += weights.back();
  }
  double reached = 0;
  std::size_t kept = 0;
  while (kept < weights.size() && (kept == 0 || reached < options.top_p * total)) {
    reached += weights[kept++];
  }
  double draw = rng.uniform() * reached;
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    draw -= weights[i];
    if (draw < 0) return tokens[i];
  }
  return tokens[kept - 1];
}

void check_prompt(const Gpt2& model, std::span<const std::int32_t> prompt) {
  const auto length = static_cast<std::int64_t>(prompt.size());
  const std::int64_t context = model.config().n_positions;
  if (length < 1) fail("[generate] the prompt must have at least one token");
  if (length > context) {
    fail("[generate] the prompt is longer than the model's context; got {} tokens, context {}",
         length, context);
  }
}

std::vector<std::int32_t> generate(const Gpt2& model, std::span<const std::int32_t> prompt,
                                   const GenerateOptions& options) {
  const std::int64_t context = model.config().n_positions;
  const auto length = static_cast<std::int64_t>(prompt.size());
  options.sample.validate();
  if (options.max_tokens < 0) {
    fail("[generate] max_tokens must be at least 0; got {}", options.max_tokens);
  }
  check_prompt(model, prompt);
  Rng rng(options.seed);
  KvCache cache(model.config(), 1);
  std::vector<std::int32_t> text(prompt.begin(), prompt.end());
  std::size_t read = 0;  // tokens of the text that the cache holds, or has forgotten
  while (static_cast<std::int64_t>(text.size()) - length < options.max_tokens) {
    if (cache.length() + static_cast<std::int64_t>(text.size() - read) > context) {
      const auto kept = static_cast<std::size_t>(std::max<std::int64_t>(context / 2, 1));
      cache.truncate(0);
      read = text.size() - kept;
    }
    const std::span<const std::int32_t> unread = std::span(text).subspan(read);
    Tape tape(Tape::Mode::no_grad);
    Gpt2::ForwardOptions forward;
    forward.cache = &cache;
    forward.last_only = true;
    forward.job = options.job;
    const Var logits =
        model.forward(tape, unread, 1, static_cast<std::int64_t>(unread.size()), forward);
    read = text.size();
    const std::int32_t token = sample_token(logits.value().values(), options.sample, rng);
    if (options.stop && token == *options.stop) break;
    text.push_back(token);
    if (options.on_token) options.on_token(token);
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(length), text.end()};
}

}  // namespace fovea::lm
