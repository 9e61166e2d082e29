#include "lm/optim.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lm/error.h"
#include "lm/parallel.h"
#include "lm/simd.h"

namespace fovea::lm {
namespace {

constexpr std::int64_t kElements = 1 << 14;  // elements of one task

struct Update {
  float beta1, beta2, eps, rate, decay;  // decay: learning rate times weight decay
  float correction1, correction2;        // 1 / (1 - beta^t)
};

FOVEA_LM_CLONES void adamw(float* w, const float* g, float* m, float* v, std::int64_t count,
                           const Update& u) {
  const Update s = u;
  for (std::int64_t i = 0; i < count; ++i) {
    m[i] = s.beta1 * m[i] + (1.0F - s.beta1) * g[i];
    v[i] = s.beta2 * v[i] + (1.0F - s.beta2) * g[i] * g[i];
    const float direction = m[i] * s.correction1 / (std::sqrt(v[i] * s.correction2) + s.eps);
    w[i] -= s.rate * direction + s.decay * w[i];
  }
}

FOVEA_LM_CLONES double sum_of_squares(const float* x, std::int64_t count) {
  double lanes[simd::kLanes] = {};
  std::int64_t i = 0;
  for (; i + simd::kLanes <= count; i += simd::kLanes) {
    for (int l = 0; l < simd::kLanes; ++l) {
      lanes[l] += static_cast<double>(x[i + l]) * static_cast<double>(x[i + l]);
    }
  }
  for (int l = 0; i < count; ++i, ++l) {
    lanes[l] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

void AdamWOptions::validate() const {
  const auto check = [](const char* name, double value, bool ok, const char* domain) {
    if (!ok) fail("[adamw] {} must be {}; got {}", name, domain, value);
  };
  check("beta1", beta1, beta1 >= 0 && beta1 < 1, "at least 0 and below 1");
  check("beta2", beta2, beta2 >= 0 && beta2 < 1, "at least 0 and below 1");
  check("eps", eps, eps > 0 && std::isfinite(eps), "positive");
  check("weight_decay", weight_decay, weight_decay >= 0 && std::isfinite(weight_decay),
        "at least 0");
}

AdamW::AdamW(const std::vector<Parameter>& parameters, const AdamWOptions& options)
    : parameters_(parameters), options_(options) {
  options_.validate();
  for (const Parameter& parameter : parameters_) {
    states_.push_back({Tensor::zeros(parameter.var.shape()), Tensor::zeros(parameter.var.shape())});
  }
}

void AdamW::step(double learning_rate) {
  const auto t = static_cast<double>(steps_ + 1);
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const Var& var = parameters_[p].var;
    const Tensor grad = var.grad();
    if (!grad.defined()) fail("[adamw] parameter {} has no gradient", parameters_[p].name);
    const double decay = var.value().rank() > 1 ? learning_rate * options_.weight_decay : 0.0;
    const Update update = {static_cast<float>(options_.beta1),
                           static_cast<float>(options_.beta2),
                           static_cast<float>(options_.eps),
                           static_cast<float>(learning_rate),
                           static_cast<float>(decay),
                           static_cast<float>(1.0 / (1.0 - std::pow(options_.beta1, t))),
                           static_cast<float>(1.0 / (1.0 - std::pow(options_.beta2, t)))};
    float* const w = var.value().data();
    const float* const g = grad.data();
    float* const m = states_[p].m.data();
    float* const v = states_[p].v.data();
    parallel_ranges(grad.numel(), kElements, [&](std::int64_t begin, std::int64_t end) {
      adamw(w + begin, g + begin, m + begin, v + begin, end - begin, update);
    });
    var.zero_grad();
  }
  ++steps_;
}

double clip_grad_norm(const std::vector<Parameter>& parameters, double max_norm) {
  if (!(max_norm >= 0)) fail("[clip] the largest norm must be at least 0; got {}", max_norm);
  double sum = 0;
  for (const Parameter& parameter : parameters) {
    const Tensor grad = parameter.var.grad();
    if (!grad.defined()) continue;
    std::vector<double> parts(static_cast<std::size_t>((grad.numel() + kElements - 1) / kElements));
    parallel_ranges(grad.numel(), kElements, [&](std::int64_t begin, std::int64_t end) {
      parts[static_cast<std::size_t>(begin / kElements)] =
          sum_of_squares(grad.data() + begin, end - begin);
    });
    for (const double part : parts) sum += part;
  }
  const double norm = std::sqrt(sum);
  if (max_norm == 0 || norm <= max_norm || !std::isfinite(norm)) return norm;
  const auto factor = static_cast<float>(max_norm / norm);
  for (const Parameter& parameter : parameters) {
    const Tensor grad = parameter.var.grad();
    if (!grad.defined()) continue;
    const std::span<float> values = grad.values();
    for (float& value : values) value *= factor;
  }
  return norm;
}

void LearningRate::validate() const {
  if (!(peak > 0) || !std::isfinite(peak)) {
    fail("[schedule] the learning rate must be positive; got {}", peak);
  }
  if (!(final_ratio >= 0 && final_ratio <= 1)) {
    fail("[schedule] the final ratio must lie in 0 to 1; got {}", final_ratio);
  }
  if (warmup_steps < 0) fail("[schedule] warm-up steps must be at least 0; got {}", warmup_steps);
  if (total_steps < 1) fail("[schedule] total steps must be at least 1; got {}", total_steps);
}

double LearningRate::at(std::int64_t step) const {
  if (step < warmup_steps) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  if (step >= total_steps) return peak * final_ratio;
  const double progress =
      static_cast<double>(step - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
  const double falling = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return peak * (final_ratio + (1.0 - final_ratio) * falling);
}

}  // namespace fovea::lm
