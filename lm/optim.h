// AdamW, gradient clipping, learning-rate schedule.
#pragma once

#include <cstdint>
#include <vector>

#include "lm/gpt2.h"

namespace fovea::lm {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;

  /// Throws fovea::Error that names the field and its value.
  void validate() const;
};

/// Adam with decoupled weight decay (Loshchilov and Hutter, 2019). Parameters of one dimension
/// (biases, gains) are not decayed. With g the gradient and t the step, from 1:
///   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
///   w -= lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay w)
class AdamW {
 public:
  AdamW(const std::vector<Parameter>& parameters, const AdamWOptions& options);

  /// Updates the parameters in place and clears their gradients. Throws fovea::Error when a
  /// parameter has no gradient.
  void step(double learning_rate);

  [[nodiscard]] std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  /// m and v of parameter `index`, in its shape.
  [[nodiscard]] const Tensor& first_moment(std::size_t index) const { return states_[index].m; }
  [[nodiscard]] const Tensor& second_moment(std::size_t index) const { return states_[index].v; }

 private:
  struct State {
    Tensor m, v;
  };
  std::vector<Parameter> parameters_;
  std::vector<State> states_;
  AdamWOptions options_;
  std::int64_t steps_ = 0;
};

/// Scales all gradients by max_norm / norm where their joint Euclidean norm exceeds max_norm, and
/// returns the norm before, summed in f64 in a fixed order. max_norm 0 only measures. Non-finite
/// gradients are left as they are.
double clip_grad_norm(const std::vector<Parameter>& parameters, double max_norm);

/// Linear from peak / warmup_steps up to peak over the first warmup_steps steps, then a half cosine
/// down to peak * final_ratio at total_steps, constant behind.
struct LearningRate {
  double peak = 1e-3;
  double final_ratio = 0.1;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 1;

  void validate() const;
  /// Of step `step`, from 0.
  [[nodiscard]] double at(std::int64_t step) const;
};

}  // namespace fovea::lm
