#include <cmath>

#include <nlohmann/json.hpp>

#include "lm/error.h"
#include "lm/gpt2.h"
#include "lm/json_fields.h"

namespace fovea::lm {
namespace {

void check_range(const char* name, std::int64_t value, std::int64_t largest) {
  if (value < 1 || value > largest) {
    fail("[gpt2] {} must be 1 to {}; got {}", name, largest, value);
  }
}

}  // namespace

void Gpt2Config::validate() const {
  check_range("vocab_size", vocab_size, kMostTokens);
  check_range("n_positions", n_positions, kMostTokens);
  check_range("n_embd", n_embd, kMostWidth);
  check_range("n_layer", n_layer, kMostLayers);
  check_range("n_head", n_head, n_embd);
  if (n_embd % n_head != 0) {
    fail("[gpt2] n_head must divide n_embd; got n_embd={}, n_head={}", n_embd, n_head);
  }
  if (head_dim() > kMostHeadDim) {
    fail("[gpt2] n_embd / n_head must be at most {}; got {} / {} = {}", kMostHeadDim, n_embd,
         n_head, head_dim());
  }
  if (!(layer_norm_epsilon > 0 && layer_norm_epsilon < 1)) {
    fail("[gpt2] layer_norm_epsilon must lie between 0 and 1; got {}", layer_norm_epsilon);
  }
  check_attention_backend(attention_backend);
}

nlohmann::json Gpt2Config::to_json() const {
  return {{"model_type", "gpt2"},
          {"vocab_size", vocab_size},
          {"n_positions", n_positions},
          {"n_embd", n_embd},
          {"n_layer", n_layer},
          {"n_head", n_head},
          {"layer_norm_epsilon", layer_norm_epsilon},
          {"attention_backend", attention_backend}};
}

Gpt2Config Gpt2Config::from_json(const nlohmann::json& json) {
  JsonFields fields(json, "model config");
  const std::string type = fields.text("model_type");
  if (type != "gpt2") fail("[model config] model_type must be gpt2; got '{}'", type);
  Gpt2Config config;
  config.vocab_size = fields.integer("vocab_size");
  config.n_positions = fields.integer("n_positions");
  config.n_embd = fields.integer("n_embd");
  config.n_layer = fields.integer("n_layer");
  config.n_head = fields.integer("n_head");
  config.layer_norm_epsilon = fields.number("layer_norm_epsilon");
  config.attention_backend = fields.text("attention_backend");
  fields.refuse_unknown();
  config.validate();
  return config;
}

}  // namespace fovea::lm
