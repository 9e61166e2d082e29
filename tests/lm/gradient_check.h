// Compares an operator and its gradients with an f64 evaluation of its formula and with central
// differences of that.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lm/tape.h"
#include "tests/lm/support.h"

namespace fovea::lm::test {

using Values = std::vector<double>;

struct GradientCheck {
  std::vector<Shape> shapes;  ///< of the inputs, all of which get gradients
  std::function<Var(Tape&, const std::vector<Var>&)> op;
  std::function<Values(const std::vector<Values>&)> formula;
  double tolerance = 1e-5;  ///< relative L2 error of the value and of each gradient
};

inline double relative_error(const std::vector<float>& got, const Values& want) {
  EXPECT_EQ(got.size(), want.size());
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - want[i], 2);
    norm += want[i] * want[i];
  }
  return norm == 0 ? std::sqrt(error) : std::sqrt(error / norm);
}

inline void check_gradients(const GradientCheck& check, std::uint64_t seed = 1) {
  Rng rng(seed);
  std::vector<Var> inputs;
  std::vector<Values> exact;
  for (const Shape& shape : check.shapes) {
    inputs.push_back(Var::parameter(random_tensor(shape, rng)));
    const std::vector<float> values = values_of(inputs.back().value());
    exact.emplace_back(values.begin(), values.end());
  }
  // loss = sum of weights times the operator's result
  Tape tape;
  const Var y = check.op(tape, inputs);
  const Tensor weights = random_tensor(y.shape(), rng);
  const std::vector<float> w = values_of(weights);
  const Values want = check.formula(exact);
  EXPECT_LE(relative_error(values_of(y.value()), want), check.tolerance) << "value";

  const Var loss = tape.record(Tensor::zeros({1}), [slot = y.slot(), weights](const Tensor&) {
    const GradTarget target = grad_target(slot);
    copy_into(target.tensor, weights, target.accumulate);
  });
  tape.backward(loss);

  const auto loss_at = [&](const std::vector<Values>& at) {
    const Values result = check.formula(at);
    double sum = 0;
    for (std::size_t i = 0; i < result.size(); ++i) sum += result[i] * static_cast<double>(w[i]);
    return sum;
  };
  constexpr double kStep = 1e-5;
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    Values numeric(exact[n].size());
    for (std::size_t i = 0; i < numeric.size(); ++i) {
      std::vector<Values> moved = exact;
      moved[n][i] = exact[n][i] + kStep;
      const double above = loss_at(moved);
      moved[n][i] = exact[n][i] - kStep;
      numeric[i] = (above - loss_at(moved)) / (2 * kStep);
    }
    ASSERT_TRUE(inputs[n].grad().defined()) << "input " << n;
    EXPECT_LE(relative_error(values_of(inputs[n].grad()), numeric), check.tolerance)
        << "gradient of input " << n;
  }
}

}  // namespace fovea::lm::test
