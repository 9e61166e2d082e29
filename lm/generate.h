// Text generation: sampling from a model token by token, with a KV cache.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <fovea/report.h>

#include "lm/gpt2.h"
#include "lm/rng.h"

namespace fovea::lm {

struct SampleOptions {
  double temperature = 0.8;  ///< 0: always the likeliest token
  std::int64_t top_k = 0;    ///< only the k likeliest; 0: all
  double top_p = 1.0;        ///< only the likeliest that together reach p

  /// Throws fovea::Error that names the option and its value.
  void validate() const;
};

/// Draws a token from one row of f32 logits. One draw of `rng`, none at temperature 0. Equal logits
/// rank by token. Throws fovea::Error on a NaN or +inf logit.
std::int32_t sample_token(std::span<const float> logits, const SampleOptions& options, Rng& rng);

struct GenerateOptions {
  SampleOptions sample;
  std::int64_t max_tokens = 200;  ///< new ones
  std::uint64_t seed = 1;
  std::optional<std::int32_t> stop;            ///< ends the text when drawn; not part of the result
  std::function<void(std::int32_t)> on_token;  ///< each token as it comes
  Job* job = nullptr;
};

/// Throws fovea::Error when the prompt is empty or longer than the model's context.
void check_prompt(const Gpt2& model, std::span<const std::int32_t> prompt);

/// The tokens that follow `prompt`, which check_prompt() accepts, else fovea::Error. A text that
/// outgrows the context goes on from its last half, whose keys and values are computed anew at
/// positions from 0: what lies before is forgotten.
std::vector<std::int32_t> generate(const Gpt2& model, std::span<const std::int32_t> prompt,
                                   const GenerateOptions& options);

}  // namespace fovea::lm
