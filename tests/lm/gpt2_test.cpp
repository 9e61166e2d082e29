#include "lm/gpt2.h"

#include <cmath>
#include <set>

#include <nlohmann/json.hpp>

#include "lm/ops.h"
#include "tests/lm/support.h"

namespace fovea::lm {
namespace {

Gpt2Config small() {
  Gpt2Config config;
  config.vocab_size = 40;
  config.n_positions = 16;
  config.n_embd = 24;
  config.n_layer = 2;
  config.n_head = 3;
  return config;
}

std::vector<std::int32_t> some_tokens(std::size_t count) {
  std::vector<std::int32_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = static_cast<std::int32_t>(i * 7 % 40);
  return tokens;
}

TEST(Gpt2Config, I4_json_goes_round_with_the_backend) {
  Gpt2Config config = small();
  config.attention_backend = "flash";
  config.layer_norm_epsilon = 1e-5;
  const std::string text = config.to_json().dump();
  EXPECT_EQ(Gpt2Config::from_json(nlohmann::json::parse(text)), config);
}

TEST(Gpt2Config, bad_fields_are_named_with_their_values) {
  const nlohmann::json good = small().to_json();
  const auto with = [&](const char* key, nlohmann::json value) {
    nlohmann::json json = good;
    json[key] = std::move(value);
    (void)Gpt2Config::from_json(json);
  };
  EXPECT_ERROR_HAS(with("n_head", 5), "n_head must divide n_embd; got n_embd=24, n_head=5");
  EXPECT_ERROR_HAS(with("n_head", 0), "n_head must be 1 to 24; got 0");
  EXPECT_ERROR_HAS(with("n_layer", -1), "n_layer must be 1 to 4096; got -1");
  EXPECT_ERROR_HAS(with("n_embd", 1 << 20), "n_embd must be");
  EXPECT_ERROR_HAS(with("vocab_size", 0), "vocab_size must be");
  EXPECT_ERROR_HAS(with("n_positions", std::int64_t{1} << 40), "n_positions must be");
  EXPECT_ERROR_HAS(with("layer_norm_epsilon", 0), "layer_norm_epsilon must lie");
  EXPECT_ERROR_HAS(with("attention_backend", "torch"), "got 'torch'");
  EXPECT_ERROR_HAS(with("model_type", "llama"), "got 'llama'");
  EXPECT_ERROR_HAS(with("n_embd", "24"), "'n_embd' must be a 64-bit integer");
  EXPECT_ERROR_HAS(with("rope_scaling", 2), "unknown key 'rope_scaling'");
  nlohmann::json missing = good;
  missing.erase("n_layer");
  EXPECT_ERROR_HAS((void)Gpt2Config::from_json(missing), "'n_layer' is missing");
  Gpt2Config wide = small();
  wide.n_embd = 1026;
  wide.n_head = 1;
  EXPECT_ERROR_HAS(wide.validate(), "at most 512; got 1026 / 1 = 1026");
}

TEST(Gpt2, initial_weights_follow_gpt2) {
  Gpt2Config config = small();
  config.n_embd = 96;
  Rng rng(1);
  const Gpt2 model(config, rng);
  std::set<std::string> names;
  for (const Parameter& p : model.parameters()) {
    names.insert(p.name);
    double squares = 0;
    for (const float value : p.var.value().values()) {
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
    const double deviation = std::sqrt(squares / static_cast<double>(p.var.value().numel()));
    if (p.name.ends_with("bias")) {
      EXPECT_EQ(deviation, 0) << p.name;
    } else if (p.var.value().rank() == 1) {
      EXPECT_EQ(deviation, 1) << p.name;
    } else {
      const double want = p.name.ends_with("c_proj.weight") ? 0.01 : 0.02;  // sqrt(2 * 2 layers)
      EXPECT_NEAR(deviation, want, 0.05 * want) << p.name;
    }
  }
  EXPECT_EQ(names.size(), Gpt2::parameter_tensors(config));
  EXPECT_TRUE(names.contains("h.1.attn.c_attn.weight"));
}

// Central differences of the f64-reduced loss through the whole model, in a few weights of each
// parameter.
TEST(Gpt2, gradients_of_the_whole_model) {
  Rng rng(4);
  const Gpt2 model(small(), rng);
  // Larger weights than the initial ones, so that every part matters.
  for (const Parameter& p : model.parameters()) {
    for (float& value : p.var.value().values()) value += static_cast<float>(0.2 * rng.normal());
  }
  const std::vector<std::int32_t> tokens = some_tokens(20);
  const std::vector<std::int32_t> targets(tokens.rbegin(), tokens.rend());
  const auto loss_of = [&] {
    Tape tape(Tape::Mode::no_grad);
    return cross_entropy(tape, model.forward(tape, tokens, 2, 10), targets).value;
  };
  Tape tape;
  const CrossEntropy loss = cross_entropy(tape, model.forward(tape, tokens, 2, 10), targets);
  tape.backward(loss.loss);
  for (const Parameter& p : model.parameters()) {
    const std::span<float> values = p.var.value().values();
    const std::span<float> grad = p.var.grad().values();
    double norm = 0;
    for (const float g : grad) norm = std::max(norm, std::abs(static_cast<double>(g)));
    for (int i = 0; i < 3; ++i) {
      const std::size_t at = rng.below(values.size());
      const float before = values[at];
      constexpr float kStep = 1e-2F;
      values[at] = before + kStep;
      const double above = loss_of();
      values[at] = before - kStep;
      const double below = loss_of();
      values[at] = before;
      const double numeric = (above - below) / (2 * static_cast<double>(kStep));
      EXPECT_NEAR(static_cast<double>(grad[at]), numeric, 0.02 * norm + 2e-5) << p.name;
    }
  }
}

TEST(Gpt2, I5_cached_steps_equal_the_full_forward) {
  for (const char* backend : {"unfused", "flash", "auto"}) {
    Gpt2Config config = small();
    config.attention_backend = backend;
    Rng rng(6);
    const Gpt2 model(config, rng);
    const std::vector<std::int32_t> tokens = some_tokens(32);  // batch 2, seq 16
    Tape tape(Tape::Mode::no_grad);
    const std::vector<float> full = test::values_of(model.forward(tape, tokens, 2, 16).value());

    KvCache cache(config, 2);
    std::int64_t at = 0;
    for (const std::int64_t count : {5, 1, 1, 4, 5}) {
      std::vector<std::int32_t> part;
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t i = at; i < at + count; ++i) {
          part.push_back(tokens[static_cast<std::size_t>(b * 16 + i)]);
        }
      }
      Gpt2::ForwardOptions options;
      options.cache = &cache;
      const std::vector<float> logits =
          test::values_of(model.forward(tape, part, 2, count, options).value());
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t i = 0; i < count * 40; ++i) {
          EXPECT_NEAR(logits[static_cast<std::size_t>(b * count * 40 + i)],
                      full[static_cast<std::size_t>((b * 16 + at) * 40 + i)], 2e-5);
        }
      }
      at += count;
      EXPECT_EQ(cache.length(), at);
    }
    const std::vector<std::int32_t> more = {1, 2};
    Gpt2::ForwardOptions options;
    options.cache = &cache;
    EXPECT_ERROR_HAS(model.forward(tape, more, 2, 1, options),
                     "longer than the model's 16 positions; got 1 tokens behind 16 cached");
  }
}

TEST(Gpt2, last_only_is_the_last_row) {
  Rng rng(6);
  const Gpt2 model(small(), rng);
  const std::vector<std::int32_t> tokens = some_tokens(10);
  Tape tape(Tape::Mode::no_grad);
  const std::vector<float> full = test::values_of(model.forward(tape, tokens, 2, 5).value());
  Gpt2::ForwardOptions options;
  options.last_only = true;
  const Var last = model.forward(tape, tokens, 2, 5, options);
  ASSERT_EQ(last.shape(), (Shape{2, 1, 40}));
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t c = 0; c < 40; ++c) {
      EXPECT_NEAR(last.value().data()[b * 40 + c],
                  full[static_cast<std::size_t>((b * 5 + 4) * 40 + c)], 1e-6);
    }
  }
}

TEST(Gpt2, bad_calls_are_named) {
  Rng rng(6);
  const Gpt2 model(small(), rng);
  Tape tape(Tape::Mode::no_grad);
  const std::vector<std::int32_t> tokens = some_tokens(17);
  EXPECT_ERROR_HAS(model.forward(tape, tokens, 1, 17), "longer than the model's 16 positions");
  EXPECT_ERROR_HAS(model.forward(tape, {}, 1, 0), "at least 1; got 1 and 0");
  KvCache cache(small(), 2);
  Gpt2::ForwardOptions options;
  options.cache = &cache;
  const std::span<const std::int32_t> few(tokens.data(), 4);
  EXPECT_ERROR_HAS(model.forward(tape, few, 1, 4, options), "made for batch 2; got batch 1");
  Tape recording;
  EXPECT_ERROR_HAS(model.forward(recording, few, 2, 2, options), "carry no gradient");
  EXPECT_ERROR_HAS(cache.truncate(1), "must be 0 to 0; got 1");
}

}  // namespace
}  // namespace fovea::lm
