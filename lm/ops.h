// Differentiable operators. Values are f32; every operator checks shapes and throws fovea::Error
// that names itself, what is wrong and the shape found. Attention stands in attention.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "lm/tape.h"

namespace fovea::lm {

/// token_table [vocabulary, width] and position_table [positions, width] (optional) looked up and
/// added: [batch, seq, width] from tokens [batch * seq]. Position of the first token:
/// `first_position`.
Var embedding(Tape& tape, const Var& token_table, const std::optional<Var>& position_table,
              std::span<const std::int32_t> tokens, std::int64_t batch, std::int64_t seq,
              std::int64_t first_position = 0);

enum class WeightLayout {
  in_out,  ///< weight [in, out], as GPT-2 stores its projections
  out_in,  ///< weight [out, in]; the tied head uses the token table this way
};

/// x [..., in] times weight, plus bias [out]: [..., out].
Var linear(Tape& tape, const Var& x, const Var& weight, const std::optional<Var>& bias,
           WeightLayout layout = WeightLayout::in_out);

/// (x - mean) / sqrt(variance + eps) * gain + shift over the last dimension; gain, shift [width].
Var layer_norm(Tape& tape, const Var& x, const Var& gain, const Var& shift, double eps);

/// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the form of GPT-2.
Var gelu(Tape& tape, const Var& x);

/// Elementwise sum of equal shapes.
Var add(Tape& tape, const Var& a, const Var& b);

/// q, k and v [batch, heads, seq, head_dim] of a packed projection [batch, seq, 3 * heads *
/// head_dim], as views of its memory. Their gradients are views of one packed gradient.
std::array<Var, 3> split_qkv(Tape& tape, const Var& qkv, std::int64_t heads);

/// [batch, heads, seq, head_dim] that lies in memory as [batch, seq, heads, head_dim] becomes
/// [batch, seq, heads * head_dim], without a copy.
Var merge_heads(Tape& tape, const Var& x);

struct CrossEntropy {
  Var loss;                  ///< [1], the mean over the counted targets
  double value = 0;          ///< the same in f64, before its rounding to f32
  std::int64_t counted = 0;  ///< targets that are not `ignored`
};
/// Mean of log sum exp(logits_i) - logits_i[target_i] over rows, reduced in f64 in row order.
/// logits
/// [..., classes], targets in [0, classes) or `ignored`. All ignored: an error.
CrossEntropy cross_entropy(Tape& tape, const Var& logits, std::span<const std::int32_t> targets,
                           std::int32_t ignored = -1);

}  // namespace fovea::lm
