// Attention as a differentiable operator, served by the library.
#pragma once

#include <optional>
#include <string>

#include <fovea/fovea.h>

#include "lm/tape.h"

namespace fovea::lm {

struct AttentionOptions {
  /// "auto" leaves the choice to the library; "flash" and "unfused" name a family of its kernels.
  std::string backend = "auto";
  std::optional<Band> band;
  Job* job = nullptr;  ///< where the kernels that ran are proved; null: the process's
};

/// Throws fovea::Error unless `name` is "auto", "flash" or "unfused".
void check_attention_backend(const std::string& name);

/// softmax(scale q k^T, limited to the band) v.
///
/// q [batch, q_heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim], v [batch, kv_heads,
/// kv_len, v_head_dim], any strides, read in place; q_heads % kv_heads == 0. `scale` defaults to
/// 1/sqrt(head_dim). The result [batch, q_heads, q_len, v_head_dim] lies in memory as [batch,
/// q_len, q_heads, v_head_dim]. Gradients are repeatable bit for bit. When no kernel of the backend
/// serves the call, throws fovea::Error with the reason of each.
Var scaled_dot_product_attention(Tape& tape, const Var& q, const Var& k, const Var& v,
                                 std::optional<double> scale, const AttentionOptions& options);

}  // namespace fovea::lm
