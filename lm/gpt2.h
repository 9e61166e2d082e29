// GPT-2: pre-layer-norm transformer with learned positions and a tied head.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lm/attention.h"
#include "lm/rng.h"
#include "lm/tape.h"

namespace fovea::lm {

/// The shape of a model, and how it computes attention. JSON keys are the member names, those of
/// the published GPT-2 configurations where there is one.
struct Gpt2Config {
  // Far above any model this runtime can hold, far below where products of them overflow.
  static constexpr std::int64_t kMostTokens = 1 << 24;  ///< in the vocabulary, and positions
  static constexpr std::int64_t kMostWidth = 1 << 17, kMostLayers = 1 << 12, kMostHeadDim = 512;

  std::int64_t vocab_size = 256;
  std::int64_t n_positions = 512;  ///< longest context
  std::int64_t n_embd = 192;
  std::int64_t n_layer = 4;
  std::int64_t n_head = 3;
  double layer_norm_epsilon = 1e-5;
  std::string attention_backend = "auto";  ///< unfused, flash or auto

  /// Throws fovea::Error that names the field and its value.
  void validate() const;
  [[nodiscard]] std::int64_t head_dim() const { return n_embd / n_head; }
  [[nodiscard]] nlohmann::json to_json() const;
  /// Validated. Unknown, missing or mistyped keys throw fovea::Error.
  static Gpt2Config from_json(const nlohmann::json& json);
  friend bool operator==(const Gpt2Config&, const Gpt2Config&) = default;
};

/// A parameter under its name in the published checkpoints ("h.0.attn.c_attn.weight").
struct Parameter {
  std::string name;
  Var var;
};

/// Keys and values of the tokens seen so far, of every layer.
class KvCache {
 public:
  /// Room for the model's longest context.
  KvCache(const Gpt2Config& config, std::int64_t batch);

  [[nodiscard]] std::int64_t length() const { return length_; }
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }
  /// Forgets everything but the first `length` tokens.
  void truncate(std::int64_t length);

 private:
  friend class Gpt2;
  struct Layer {
    Tensor k,
        v;  // [batch, heads, capacity, head_dim] over the memory order of [.., seq, heads, ..]
  };
  std::vector<Layer> layers_;
  std::int64_t length_ = 0;
  std::int64_t capacity_ = 0;
};

class Gpt2 {
 public:
  /// Normal weights of deviation 0.02, divided by sqrt(2 n_layer) in the projections that write to
  /// the residual stream; zero biases; unit gains.
  Gpt2(const Gpt2Config& config, Rng& rng);
  /// Uninitialised weights, to be filled from a checkpoint.
  explicit Gpt2(const Gpt2Config& config);

  [[nodiscard]] const Gpt2Config& config() const { return config_; }
  /// Throws fovea::Error unless it is unfused, flash or auto.
  void set_attention_backend(const std::string& name);
  /// In a fixed order.
  [[nodiscard]] const std::vector<Parameter>& parameters() const { return parameters_; }
  [[nodiscard]] std::int64_t parameter_count() const;

  struct ForwardOptions {
    KvCache* cache = nullptr;  ///< continue behind its tokens, and append these (no gradient)
    bool last_only = false;    ///< logits of the last position alone
    Job* job = nullptr;
  };
  /// Logits [batch, seq, vocab_size] ([batch, 1, vocab_size] with last_only) of tokens [batch *
  /// seq]. Throws fovea::Error when the positions exceed the model's context.
  Var forward(Tape& tape, std::span<const std::int32_t> tokens, std::int64_t batch,
              std::int64_t seq, const ForwardOptions& options) const;
  Var forward(Tape& tape, std::span<const std::int32_t> tokens, std::int64_t batch,
              std::int64_t seq) const {
    return forward(tape, tokens, batch, seq, ForwardOptions());
  }

  /// Names and shapes of the parameters of a model with this configuration, in their order.
  struct ParameterShape {
    std::string name;
    Shape shape;
  };
  static std::vector<ParameterShape> parameter_shapes(const Gpt2Config& config);
  /// How many those are.
  static std::size_t parameter_tensors(const Gpt2Config& config);

 private:
  struct Block {
    Var norm1_gain, norm1_shift, qkv_weight, qkv_bias, out_weight, out_bias;
    Var norm2_gain, norm2_shift, up_weight, up_bias, down_weight, down_bias;
  };
  [[nodiscard]] Var attention(Tape& tape, const Block& block, const Var& x, std::size_t layer,
                              const ForwardOptions& options) const;

  Gpt2Config config_;
  std::vector<Parameter> parameters_;
  std::vector<Block> blocks_;
  Var token_table_, position_table_, norm_gain_, norm_shift_;
};

}  // namespace fovea::lm
