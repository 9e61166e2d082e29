#include "lm/ops.h"

#include <numbers>

#include "lm/gemm.h"
#include "lm/parallel.h"
#include "tests/lm/gradient_check.h"

namespace fovea::lm {
namespace {

using test::check_gradients;
using test::GradientCheck;
using test::Values;

// x [rows, in] times weight (stride_in, stride_out) plus bias
Values linear_formula(const Values& x, const Values& weight, const Values* bias, std::size_t in,
                      std::size_t out, bool in_out) {
  const std::size_t rows = x.size() / in;
  Values y(rows * out);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t o = 0; o < out; ++o) {
      double sum = bias != nullptr ? (*bias)[o] : 0;
      for (std::size_t c = 0; c < in; ++c) {
        sum += x[i * in + c] * weight[in_out ? c * out + o : o * in + c];
      }
      y[i * out + o] = sum;
    }
  }
  return y;
}

TEST(Linear, gradients_in_out_with_bias) {
  check_gradients(
      {{{2, 3, 5}, {5, 7}, {7}},
       [](Tape& tape, const std::vector<Var>& v) { return linear(tape, v[0], v[1], v[2]); },
       [](const std::vector<Values>& v) { return linear_formula(v[0], v[1], &v[2], 5, 7, true); }});
}

TEST(Linear, gradients_out_in_without_bias) {
  check_gradients({{{4, 6}, {3, 6}},
                   [](Tape& tape, const std::vector<Var>& v) {
                     return linear(tape, v[0], v[1], std::nullopt, WeightLayout::out_in);
                   },
                   [](const std::vector<Values>& v) {
                     return linear_formula(v[0], v[1], nullptr, 6, 3, false);
                   }});
}

// x is used twice and the weight twice: the second gradient of each is added in place.
TEST(Linear, gradients_accumulate_over_two_uses) {
  check_gradients({{{3, 4}, {4, 4}},
                   [](Tape& tape, const std::vector<Var>& v) {
                     const Var y = linear(tape, v[0], v[1], std::nullopt);
                     return add(tape, y, linear(tape, y, v[1], std::nullopt));
                   },
                   [](const std::vector<Values>& v) {
                     const Values y = linear_formula(v[0], v[1], nullptr, 4, 4, true);
                     Values z = linear_formula(y, v[1], nullptr, 4, 4, true);
                     for (std::size_t i = 0; i < z.size(); ++i) z[i] += y[i];
                     return z;
                   }});
}

TEST(Linear, mismatched_shapes_are_named) {
  Tape tape;
  const Var x(Tensor::zeros({2, 3}));
  EXPECT_ERROR_HAS(linear(tape, x, Var(Tensor::zeros({4, 5})), std::nullopt),
                   "x [2, 3] and bias none do not fit the [in, out] weight [4, 5]");
  EXPECT_ERROR_HAS(linear(tape, x, Var(Tensor::zeros({3, 5})), Var(Tensor::zeros({4}))),
                   "bias [4]");
  EXPECT_ERROR_HAS(linear(tape, x, Var(Tensor::zeros({3})), std::nullopt), "weight [3]");
}

TEST(Gemm, blocks_cover_ragged_shapes_and_equal_any_thread_count) {
  Rng rng(3);
  for (const auto& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{
           {1, 1, 1}, {1, 300, 70}, {257, 99, 130}, {600, 513, 17}, {96, 97, 2048}}) {
    const Tensor a = test::random_tensor({m, k}, rng);
    const Tensor b = test::random_tensor({k, n}, rng);
    Tensor single;
    for (const int threads : {1, 2, 5}) {
      set_num_threads(threads);
      const Tensor c = Tensor::empty({m, n});
      gemm({.m = m,
            .n = n,
            .k = k,
            .a = a.data(),
            .lda = k,
            .b = b.data(),
            .ldb = n,
            .c = c.data(),
            .ldc = n});
      if (threads == 1) {
        single = c;
        double error = 0;
        for (std::int64_t i = 0; i < m; i += 37) {
          for (std::int64_t j = 0; j < n; j += 11) {
            double sum = 0;
            for (std::int64_t l = 0; l < k; ++l) {
              sum += static_cast<double>(a.data()[i * k + l]) *
                     static_cast<double>(b.data()[l * n + j]);
            }
            error = std::max(error, std::abs(sum - static_cast<double>(c.data()[i * n + j])));
          }
        }
        EXPECT_LE(error, 1e-4) << m << " " << n << " " << k;
      } else {
        EXPECT_EQ(test::values_of(c), test::values_of(single)) << threads << " threads";
      }
    }
    set_num_threads(0);
  }
}

TEST(LayerNorm, gradients_of_width_not_a_multiple_of_16) {
  constexpr std::size_t kWidth = 19;
  check_gradients({{{5, kWidth}, {kWidth}, {kWidth}},
                   [](Tape& tape, const std::vector<Var>& v) {
                     return layer_norm(tape, v[0], v[1], v[2], 1e-5);
                   },
                   [](const std::vector<Values>& v) {
                     Values y(v[0].size());
                     for (std::size_t i = 0; i < y.size(); i += kWidth) {
                       double mean = 0;
                       double square = 0;
                       for (std::size_t c = 0; c < kWidth; ++c) mean += v[0][i + c] / kWidth;
                       for (std::size_t c = 0; c < kWidth; ++c) {
                         square += std::pow(v[0][i + c] - mean, 2) / kWidth;
                       }
                       const double r = 1 / std::sqrt(square + 1e-5);
                       for (std::size_t c = 0; c < kWidth; ++c) {
                         y[i + c] = (v[0][i + c] - mean) * r * v[1][c] + v[2][c];
                       }
                     }
                     return y;
                   }});
}

TEST(LayerNorm, more_rows_than_one_task_and_any_thread_count) {
  Rng rng(5);
  const Tensor in = test::random_tensor({200, 33}, rng);
  const Tensor gain_values = test::random_tensor({33}, rng);
  std::vector<float> first;
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    const Var x = Var::parameter(in);
    const Var gain = Var::parameter(gain_values);
    const Var shift = Var::parameter(Tensor::zeros({33}));
    Tape tape;
    const Var y = layer_norm(tape, x, gain, shift, 1e-5);
    const std::vector<std::int32_t> targets(200, 7);
    tape.backward(cross_entropy(tape, y, targets).loss);
    const std::vector<float> grads = test::values_of(gain.grad());
    if (threads == 1) first = grads;
    EXPECT_EQ(grads, first);
  }
  set_num_threads(0);
}

TEST(LayerNorm, mismatched_gain_is_named) {
  Tape tape;
  EXPECT_ERROR_HAS(layer_norm(tape, Var(Tensor::zeros({2, 4})), Var(Tensor::zeros({3})),
                              Var(Tensor::zeros({4})), 1e-5),
                   "got [3] and [4]");
}

TEST(Gelu, gradients) {
  check_gradients({{{4, 41}},
                   [](Tape& tape, const std::vector<Var>& v) { return gelu(tape, v[0]); },
                   [](const std::vector<Values>& v) {
                     Values y;
                     for (const double x : v[0]) {
                       const double u =
                           std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
                       y.push_back(0.5 * x * (1 + std::tanh(u)));
                     }
                     return y;
                   },
                   1e-6});
}

TEST(Gelu, large_and_non_finite_inputs) {
  const Tensor x = Tensor::from(
      std::vector<float>{-1e30F, -50, 50, 1e30F, std::numeric_limits<float>::quiet_NaN()}, {5});
  Tape tape(Tape::Mode::no_grad);
  const std::vector<float> y = test::values_of(gelu(tape, x).value());
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[2], 50);
  EXPECT_TRUE(std::isnan(y[4]));
}

TEST(Embedding, gradients_with_repeated_tokens_and_start_position) {
  const std::vector<std::int32_t> tokens = {3, 1, 3, 3, 0, 1};
  check_gradients({{{4, 5}, {6, 5}},
                   [&](Tape& tape, const std::vector<Var>& v) {
                     return embedding(tape, v[0], v[1], tokens, 2, 3, 2);
                   },
                   [&](const std::vector<Values>& v) {
                     Values y;
                     for (std::size_t i = 0; i < tokens.size(); ++i) {
                       for (std::size_t c = 0; c < 5; ++c) {
                         y.push_back(v[0][static_cast<std::size_t>(tokens[i]) * 5 + c] +
                                     v[1][(2 + i % 3) * 5 + c]);
                       }
                     }
                     return y;
                   }});
}

TEST(Embedding, tokens_and_positions_out_of_range_are_named) {
  Tape tape;
  const Var table(Tensor::zeros({4, 2}));
  const Var positions(Tensor::zeros({3, 2}));
  const std::vector<std::int32_t> bad = {0, 4};
  EXPECT_ERROR_HAS(embedding(tape, table, positions, bad, 1, 2), "got 4 at index 1");
  const std::vector<std::int32_t> good = {0, 1};
  EXPECT_ERROR_HAS(embedding(tape, table, positions, good, 1, 2, 2), "positions 2 to 3");
  EXPECT_ERROR_HAS(embedding(tape, table, positions, good, 1, 3), "needs as many tokens; got 2");
}

TEST(CrossEntropy, gradients_with_ignored_targets) {
  const std::vector<std::int32_t> targets = {2, -1, 0, 20};
  check_gradients({{{2, 2, 21}},
                   [&](Tape& tape, const std::vector<Var>& v) {
                     return cross_entropy(tape, v[0], targets).loss;
                   },
                   [&](const std::vector<Values>& v) {
                     double loss = 0;
                     for (std::size_t i = 0; i < 4; ++i) {
                       if (targets[i] < 0) continue;
                       double sum = 0;
                       for (std::size_t c = 0; c < 21; ++c) sum += std::exp(v[0][i * 21 + c]);
                       loss += std::log(sum) - v[0][i * 21 + static_cast<std::size_t>(targets[i])];
                     }
                     return Values{loss / 3};
                   }});
}

TEST(CrossEntropy, value_is_reduced_in_f64_and_survives_large_logits) {
  const Tensor logits = Tensor::zeros({1000, 2});
  for (std::int64_t i = 0; i < 1000; ++i) logits.data()[2 * i] = 1e4F;
  Tape tape(Tape::Mode::no_grad);
  const CrossEntropy right = cross_entropy(tape, logits, std::vector<std::int32_t>(1000, 0));
  EXPECT_NEAR(right.value, 0, 1e-12);
  const CrossEntropy wrong = cross_entropy(tape, logits, std::vector<std::int32_t>(1000, 1));
  EXPECT_DOUBLE_EQ(wrong.value, 1e4);
  EXPECT_EQ(wrong.counted, 1000);
}

TEST(CrossEntropy, bad_targets_are_named) {
  Tape tape;
  const Var logits(Tensor::zeros({2, 3}));
  const auto run = [&](std::vector<std::int32_t> targets) {
    (void)cross_entropy(tape, logits, targets);
  };
  EXPECT_ERROR_HAS(run({0, 3}), "got 3 at index 1");
  EXPECT_ERROR_HAS(run({0, -2}), "got -2 at index 1");
  EXPECT_ERROR_HAS(run({0}), "got 1 targets");
  EXPECT_ERROR_HAS(run({-1, -1}), "every one of 2 targets is ignored");
}

TEST(SplitQkv, R7_parts_are_views_and_their_gradients_one_packed_tensor) {
  Rng rng(9);
  const Var qkv = Var::parameter(test::random_tensor({2, 3, 3 * 2 * 4}, rng));
  Tape tape;
  const auto [q, k, v] = split_qkv(tape, qkv, 2);
  EXPECT_EQ(q.shape(), (Shape{2, 2, 3, 4}));
  for (const Var& part : {q, k, v}) EXPECT_TRUE(part.value().shares_storage(qkv.value()));
  EXPECT_EQ(v.value().data(), qkv.value().data() + 16);

  const GradTarget dq = grad_target(q.slot());
  const GradTarget dv = grad_target(v.slot());
  EXPECT_FALSE(dq.accumulate);
  EXPECT_TRUE(dq.tensor.shares_storage(dv.tensor));
  EXPECT_TRUE(grad_target(q.slot()).accumulate);
  copy_into(dq.tensor, q.value());
  copy_into(dv.tensor, v.value());
  const float* packed = dq.tensor.data();
  const Var loss = tape.record(Tensor::zeros({1}), [](const Tensor&) {});
  tape.backward(loss);
  // Written in place, and the part without a gradient is zero.
  EXPECT_EQ(qkv.grad().data(), packed);
  for (std::int64_t row = 0; row < 6; ++row) {
    for (std::int64_t c = 0; c < 24; ++c) {
      const std::int64_t at = row * 24 + c;
      const bool key = c >= 8 && c < 16;
      EXPECT_EQ(qkv.grad().data()[at], key ? 0 : qkv.value().data()[at]);
    }
  }
}

TEST(SplitQkv, widths_that_do_not_divide_are_named) {
  Tape tape;
  EXPECT_ERROR_HAS(split_qkv(tape, Var(Tensor::zeros({1, 2, 20})), 3), "[1, 2, 20] with heads=3");
  EXPECT_ERROR_HAS(merge_heads(tape, Var(Tensor::zeros({1, 2, 3, 4}))), "memory order");
}

}  // namespace
}  // namespace fovea::lm
