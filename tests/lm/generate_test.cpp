#include "lm/generate.h"

#include <cmath>
#include <map>

#include "tests/lm/support.h"

namespace fovea::lm {
namespace {

Gpt2Config small() {
  Gpt2Config config;
  config.vocab_size = 30;
  config.n_positions = 12;
  config.n_embd = 16;
  config.n_layer = 2;
  config.n_head = 2;
  return config;
}

// A model whose weights are large enough to have opinions.
Gpt2 opinionated(const Gpt2Config& config) {
  Rng rng(3);
  Gpt2 model(config, rng);
  for (const Parameter& p : model.parameters()) {
    for (float& value : p.var.value().values()) value += static_cast<float>(0.3 * rng.normal());
  }
  return model;
}

// Greedy generation without a cache, by the documented rule for texts that outgrow the context.
std::vector<std::int32_t> greedy_by_full_forward(const Gpt2& model, std::vector<std::int32_t> text,
                                                 std::size_t count) {
  const auto context = static_cast<std::size_t>(model.config().n_positions);
  const std::size_t prompt = text.size();
  std::size_t first = 0;
  while (text.size() < prompt + count) {
    if (text.size() - first > context) first = text.size() - context / 2;
    const std::span<const std::int32_t> window = std::span(text).subspan(first);
    Tape tape(Tape::Mode::no_grad);
    const Var logits = model.forward(tape, window, 1, static_cast<std::int64_t>(window.size()));
    const std::span<float> last = logits.value().values().last(30);
    text.push_back(
        static_cast<std::int32_t>(std::max_element(last.begin(), last.end()) - last.begin()));
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(prompt), text.end()};
}

TEST(Generate, I5_cache_equals_full_forward_also_past_the_context) {
  for (const char* backend : {"unfused", "flash"}) {
    Gpt2Config config = small();
    config.attention_backend = backend;
    const Gpt2 model = opinionated(config);
    for (const std::size_t prompt : {1, 5, 12}) {
      std::vector<std::int32_t> text(prompt);
      for (std::size_t i = 0; i < prompt; ++i) text[i] = static_cast<std::int32_t>(i * 5 % 30);
      GenerateOptions options;
      options.sample.temperature = 0;
      options.max_tokens = 40;
      EXPECT_EQ(generate(model, text, options), greedy_by_full_forward(model, text, 40))
          << backend << ", prompt of " << prompt;
    }
  }
}

TEST(Generate, a_seed_repeats_and_another_differs) {
  const Gpt2 model = opinionated(small());
  GenerateOptions options;
  options.sample.temperature = 1.5;
  const std::vector<std::int32_t> prompt = {4};
  const auto first = generate(model, prompt, options);
  EXPECT_EQ(first, generate(model, prompt, options));
  options.seed = 2;
  EXPECT_NE(first, generate(model, prompt, options));
}

TEST(Generate, stops_at_the_stop_token_and_reports_each_token) {
  const Gpt2 model = opinionated(small());
  GenerateOptions options;
  options.sample.temperature = 1;
  std::vector<std::int32_t> seen;
  options.on_token = [&](std::int32_t token) { seen.push_back(token); };
  const std::vector<std::int32_t> prompt = {4, 5};
  const auto free = generate(model, prompt, options);
  EXPECT_EQ(seen, free);
  options.stop = free[7];
  options.on_token = nullptr;
  const auto stopped = generate(model, prompt, options);
  EXPECT_LE(stopped.size(), 7U);
  EXPECT_TRUE(std::equal(stopped.begin(), stopped.end(), free.begin()));
}

TEST(Generate, bad_prompts_and_options_are_named) {
  const Gpt2 model = opinionated(small());
  const auto run = [&](std::size_t prompt, SampleOptions sample, std::int64_t count = 1) {
    GenerateOptions options;
    options.sample = sample;
    options.max_tokens = count;
    return generate(model, std::vector<std::int32_t>(prompt, 1), options);
  };
  EXPECT_ERROR_HAS(run(0, {}), "at least one token");
  EXPECT_ERROR_HAS(run(13, {}), "got 13 tokens, context 12");
  EXPECT_ERROR_HAS(run(1, {}, -1), "max_tokens must be at least 0; got -1");
  EXPECT_ERROR_HAS(run(1, {.temperature = -1}), "temperature must be at least 0; got -1");
  EXPECT_ERROR_HAS(run(1, {.temperature = NAN}), "temperature");
  EXPECT_ERROR_HAS(run(1, {.top_k = -1}), "top_k must be at least 0; got -1");
  EXPECT_ERROR_HAS(run(1, {.top_p = 0}), "top_p must be above 0 and at most 1; got 0");
  EXPECT_TRUE(run(1, {}, 0).empty());
}

std::map<std::int32_t, int> draws(const std::vector<float>& logits, const SampleOptions& options) {
  Rng rng(1);
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < 10000; ++i) ++counts[sample_token(logits, options, rng)];
  return counts;
}

TEST(SampleToken, follows_the_softmax) {
  const std::vector<float> logits = {std::log(0.5F), std::log(0.3F), -INFINITY, std::log(0.2F)};
  auto counts = draws(logits, {.temperature = 1});
  EXPECT_NEAR(counts[0], 5000, 200);
  EXPECT_NEAR(counts[1], 3000, 200);
  EXPECT_EQ(counts[2], 0);
  EXPECT_NEAR(counts[3], 2000, 200);
  counts = draws(logits, {.temperature = 0.5});
  EXPECT_NEAR(counts[0], 10000 * 0.25 / 0.38, 250);
}

TEST(SampleToken, top_k_and_top_p_cut_the_tail) {
  const std::vector<float> logits = {std::log(0.2F), std::log(0.5F), std::log(0.3F)};
  auto counts = draws(logits, {.temperature = 1, .top_k = 2});
  EXPECT_EQ(counts.size(), 2U);
  EXPECT_NEAR(counts[1], 6250, 250);
  EXPECT_EQ(draws(logits, {.temperature = 1, .top_p = 0.45}).size(), 1U);
  EXPECT_EQ(draws(logits, {.temperature = 1, .top_p = 0.6}).size(), 2U);
  EXPECT_EQ(draws(logits, {.temperature = 1, .top_k = 100}).size(), 3U);
  EXPECT_EQ(draws({1, 1, 1}, {.temperature = 1, .top_k = 1}).begin()->first, 0);
}

TEST(SampleToken, greedy_takes_the_first_largest_and_no_random_number) {
  Rng rng(1);
  const std::string before = rng.state();
  EXPECT_EQ(sample_token(std::vector<float>{1, 3, 3}, {.temperature = 0}, rng), 1);
  EXPECT_EQ(rng.state(), before);
}

TEST(SampleToken, non_finite_logits_are_errors) {
  Rng rng(1);
  EXPECT_ERROR_HAS((void)sample_token(std::vector<float>{0, NAN}, {}, rng), "token 1 is nan");
  EXPECT_ERROR_HAS((void)sample_token(std::vector<float>{INFINITY}, {}, rng), "token 0 is inf");
  EXPECT_ERROR_HAS((void)sample_token(std::vector<float>{-INFINITY}, {}, rng), "every logit");
  EXPECT_ERROR_HAS((void)sample_token({}, {}, rng), "no logits");
}

}  // namespace
}  // namespace fovea::lm
