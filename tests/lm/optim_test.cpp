#include "lm/optim.h"

#include <cmath>

#include "tests/lm/support.h"

namespace fovea::lm {
namespace {

Parameter parameter(const std::string& name, const std::vector<float>& values, Shape shape) {
  return {name, Var::parameter(Tensor::from(values, std::move(shape)))};
}

void set_grad(const Parameter& p, const std::vector<float>& values) {
  accumulate_grad(p.var.slot(), Tensor::from(values, p.var.shape()));
}

TEST(AdamW, two_steps_by_hand_with_decay_of_matrices_only) {
  const Parameter matrix = parameter("w", {1.0F, -2.0F}, {1, 2});
  const Parameter bias = parameter("b", {0.5F}, {1});
  AdamW optimizer({matrix, bias}, {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1});
  const std::vector<std::vector<double>> grads = {{0.5, -1.0, 2.0}, {0.25, 3.0, -1.0}};
  std::vector<double> w = {1.0, -2.0, 0.5};
  std::vector<double> m(3), v(3);
  for (int t = 1; t <= 2; ++t) {
    const auto& g = grads[static_cast<std::size_t>(t - 1)];
    set_grad(matrix, {static_cast<float>(g[0]), static_cast<float>(g[1])});
    set_grad(bias, {static_cast<float>(g[2])});
    optimizer.step(0.01);
    EXPECT_FALSE(matrix.var.grad().defined());
    for (std::size_t i = 0; i < 3; ++i) {
      m[i] = 0.9 * m[i] + 0.1 * g[i];
      v[i] = 0.99 * v[i] + 0.01 * g[i] * g[i];
      const double direction =
          m[i] / (1 - std::pow(0.9, t)) / (std::sqrt(v[i] / (1 - std::pow(0.99, t))) + 1e-8);
      w[i] -= 0.01 * (direction + (i < 2 ? 0.1 * w[i] : 0.0));
    }
    EXPECT_NEAR(matrix.var.value().data()[0], w[0], 1e-6);
    EXPECT_NEAR(matrix.var.value().data()[1], w[1], 1e-6);
    EXPECT_NEAR(bias.var.value().data()[0], w[2], 1e-6);
  }
  EXPECT_EQ(optimizer.steps(), 2);
  EXPECT_NEAR(optimizer.first_moment(0).data()[1], m[1], 1e-6);
  EXPECT_NEAR(optimizer.second_moment(1).data()[0], v[2], 1e-6);
}

TEST(AdamW, a_parameter_without_gradient_is_named) {
  AdamW optimizer({parameter("h.0.w", {1}, {1, 1})}, {});
  EXPECT_ERROR_HAS(optimizer.step(0.1), "parameter h.0.w has no gradient");
}

TEST(AdamW, bad_options_are_named) {
  EXPECT_ERROR_HAS(AdamWOptions{.beta1 = 1}.validate(),
                   "beta1 must be at least 0 and below 1; got 1");
  EXPECT_ERROR_HAS(AdamWOptions{.beta2 = -0.5}.validate(), "beta2");
  EXPECT_ERROR_HAS(AdamWOptions{.eps = 0}.validate(), "eps");
  EXPECT_ERROR_HAS(AdamWOptions{.weight_decay = NAN}.validate(), "weight_decay");
}

TEST(ClipGradNorm, scales_to_the_largest_norm) {
  const std::vector<Parameter> parameters = {parameter("a", {0, 0}, {2}), parameter("b", {0}, {1})};
  set_grad(parameters[0], {3, 0});
  set_grad(parameters[1], {4});
  EXPECT_DOUBLE_EQ(clip_grad_norm(parameters, 10), 5);
  EXPECT_EQ(parameters[1].var.grad().data()[0], 4);
  EXPECT_DOUBLE_EQ(clip_grad_norm(parameters, 0), 5);
  EXPECT_EQ(parameters[1].var.grad().data()[0], 4);
  EXPECT_DOUBLE_EQ(clip_grad_norm(parameters, 1), 5);
  EXPECT_FLOAT_EQ(parameters[0].var.grad().data()[0], 0.6F);
  EXPECT_FLOAT_EQ(parameters[1].var.grad().data()[0], 0.8F);
  EXPECT_NEAR(clip_grad_norm(parameters, 1), 1, 1e-6);
}

TEST(ClipGradNorm, non_finite_and_huge_gradients) {
  const std::vector<Parameter> parameters = {parameter("a", {0, 0}, {2})};
  set_grad(parameters[0], {1e30F, 1e30F});  // squares overflow f32
  EXPECT_NEAR(clip_grad_norm(parameters, 1), std::sqrt(2) * 1e30, 1e24);
  EXPECT_NEAR(parameters[0].var.grad().data()[0], std::sqrt(0.5), 1e-6);
  parameters[0].var.grad().data()[1] = INFINITY;
  EXPECT_TRUE(std::isinf(clip_grad_norm(parameters, 1)));
  EXPECT_NEAR(parameters[0].var.grad().data()[0], std::sqrt(0.5), 1e-6);
  EXPECT_ERROR_HAS((void)clip_grad_norm(parameters, -1), "got -1");
}

TEST(LearningRate, warm_up_cosine_and_end) {
  const LearningRate schedule = {
      .peak = 1, .final_ratio = 0.1, .warmup_steps = 4, .total_steps = 24};
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.25);
  EXPECT_DOUBLE_EQ(schedule.at(3), 1);
  EXPECT_DOUBLE_EQ(schedule.at(4), 1);
  EXPECT_DOUBLE_EQ(schedule.at(14), 0.55);
  EXPECT_NEAR(schedule.at(9), 0.1 + 0.9 * (0.5 + 0.5 * std::sqrt(0.5)), 1e-12);
  EXPECT_DOUBLE_EQ(schedule.at(24), 0.1);
  EXPECT_DOUBLE_EQ(schedule.at(1000), 0.1);
  for (std::int64_t step = 4; step < 24; ++step)
    EXPECT_GT(schedule.at(step), schedule.at(step + 1));
}

TEST(LearningRate, warm_up_longer_than_the_run) {
  const LearningRate schedule = {.peak = 1, .final_ratio = 0, .warmup_steps = 10, .total_steps = 5};
  EXPECT_DOUBLE_EQ(schedule.at(4), 0.5);
  EXPECT_DOUBLE_EQ((LearningRate{.peak = 2, .warmup_steps = 0, .total_steps = 3}.at(0)), 2);
}

TEST(LearningRate, bad_values_are_named) {
  EXPECT_ERROR_HAS(LearningRate{.peak = 0}.validate(), "must be positive; got 0");
  EXPECT_ERROR_HAS(LearningRate{.peak = NAN}.validate(), "got nan");
  EXPECT_ERROR_HAS(LearningRate{.final_ratio = 2}.validate(), "got 2");
  EXPECT_ERROR_HAS(LearningRate{.warmup_steps = -1}.validate(), "got -1");
  EXPECT_ERROR_HAS(LearningRate{.total_steps = 0}.validate(), "got 0");
}

}  // namespace
}  // namespace fovea::lm
