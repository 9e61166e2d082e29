#include "lm/attention.h"

#include "lm/ops.h"
#include "lm/parallel.h"
#include "tests/lm/gradient_check.h"

namespace fovea::lm {
namespace {

using test::check_gradients;
using test::Values;

struct Sizes {
  std::int64_t batch, q_heads, kv_heads, q_len, kv_len, head_dim, v_head_dim;
};

// The formula in f64, top_left when `anchor` is 1, bottom_right when 2, no band when 0; out in the
// order [batch, q_heads, q_len, v_head_dim].
Values attention_formula(const Sizes& s, const std::vector<Values>& in, double scale, int anchor) {
  Values out;
  const std::int64_t group = s.q_heads / s.kv_heads;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.q_heads; ++h) {
      const std::int64_t kv = b * s.kv_heads + h / group;
      for (std::int64_t i = 0; i < s.q_len; ++i) {
        Values p(static_cast<std::size_t>(s.kv_len));
        double sum = 0;
        for (std::int64_t j = 0; j < s.kv_len; ++j) {
          const std::int64_t offset = anchor == 2 ? s.kv_len - s.q_len : 0;
          if (anchor != 0 && j > i + offset) continue;
          double dot = 0;
          for (std::int64_t d = 0; d < s.head_dim; ++d) {
            const auto qi = ((b * s.q_heads + h) * s.q_len + i) * s.head_dim + d;
            const auto ki = (kv * s.kv_len + j) * s.head_dim + d;
            dot += in[0][static_cast<std::size_t>(qi)] * in[1][static_cast<std::size_t>(ki)];
          }
          p[static_cast<std::size_t>(j)] = std::exp(scale * dot);
          sum += p[static_cast<std::size_t>(j)];
        }
        for (std::int64_t d = 0; d < s.v_head_dim; ++d) {
          double value = 0;
          for (std::int64_t j = 0; j < s.kv_len; ++j) {
            const auto vi = (kv * s.kv_len + j) * s.v_head_dim + d;
            value += p[static_cast<std::size_t>(j)] * in[2][static_cast<std::size_t>(vi)];
          }
          out.push_back(sum == 0 ? 0 : value / sum);
        }
      }
    }
  }
  return out;
}

void check(const Sizes& s, const std::string& backend, int anchor,
           std::optional<double> scale = std::nullopt) {
  SCOPED_TRACE(backend);
  AttentionOptions options;
  options.backend = backend;
  if (anchor != 0) {
    options.band = Band::causal(anchor == 1 ? Anchor::top_left : Anchor::bottom_right);
  }
  const double used = scale.value_or(1 / std::sqrt(static_cast<double>(s.head_dim)));
  check_gradients(
      {{{s.batch, s.q_heads, s.q_len, s.head_dim},
        {s.batch, s.kv_heads, s.kv_len, s.head_dim},
        {s.batch, s.kv_heads, s.kv_len, s.v_head_dim}},
       [&](Tape& tape, const std::vector<Var>& v) {
         return scaled_dot_product_attention(tape, v[0], v[1], v[2], scale, options);
       },
       [&](const std::vector<Values>& v) { return attention_formula(s, v, used, anchor); }});
}

class AttentionBackends : public ::testing::TestWithParam<const char*> {};

TEST_P(AttentionBackends, I2_gradients_multi_head_full) {
  check({2, 2, 2, 5, 5, 8, 8}, GetParam(), 0);
}

TEST_P(AttentionBackends, I2_gradients_causal_with_scale) {
  check({1, 2, 2, 6, 6, 4, 4}, GetParam(), 1, 0.7);
}

TEST_P(AttentionBackends, I3_gradients_grouped_and_single_kv_head) {
  check({1, 4, 2, 5, 5, 4, 4}, GetParam(), 1);
  check({1, 3, 1, 4, 4, 4, 4}, GetParam(), 0);
}

TEST_P(AttentionBackends, I5_gradients_cross_attention_and_anchors) {
  check({1, 2, 2, 3, 7, 4, 6}, GetParam(), 0);
  check({1, 2, 1, 3, 6, 4, 4}, GetParam(), 2);
  check({1, 1, 1, 5, 3, 4, 4}, GetParam(), 2);  // q_longer_than_kv: the first rows see nothing
}

// q, k and v are read from the packed projection and their gradients written into one.
TEST_P(AttentionBackends, R7_packed_qkv_equals_separate_tensors) {
  constexpr std::int64_t kBatch = 2, kSeq = 5, kHeads = 3, kDim = 8;
  Rng rng(11);
  const Tensor packed = test::random_tensor({kBatch, kSeq, 3 * kHeads * kDim}, rng);
  AttentionOptions options;
  options.backend = GetParam();
  options.band = Band::causal(Anchor::top_left);
  std::vector<float> first_out, first_grad;
  for (const bool copy : {false, true}) {
    const Var qkv = Var::parameter(packed);
    Tape tape;
    auto parts = split_qkv(tape, qkv, kHeads);
    if (copy) {
      for (Var& part : parts) part = Var(part.value().clone(), part.slot());
    }
    const Var out = merge_heads(
        tape, scaled_dot_product_attention(tape, parts[0], parts[1], parts[2], {}, options));
    const std::vector<std::int32_t> targets(kBatch * kSeq, 1);
    tape.backward(cross_entropy(tape, out, targets).loss);
    if (!copy) {
      first_out = test::values_of(out.value());
      first_grad = test::values_of(qkv.grad());
    } else {
      EXPECT_EQ(test::values_of(out.value()), first_out);
      EXPECT_EQ(test::values_of(qkv.grad()), first_grad);
    }
  }
}

TEST_P(AttentionBackends, one_value_as_q_k_and_v_gathers_all_three_gradients) {
  const Sizes s{1, 2, 2, 4, 4, 4, 4};
  AttentionOptions options;
  options.backend = GetParam();
  check_gradients({{{1, 2, 4, 4}},
                   [&](Tape& tape, const std::vector<Var>& v) {
                     return scaled_dot_product_attention(tape, v[0], v[0], v[0], {}, options);
                   },
                   [&](const std::vector<Values>& v) {
                     return attention_formula(s, {v[0], v[0], v[0]}, 0.5, 0);
                   }});
}

TEST_P(AttentionBackends, results_do_not_depend_on_the_number_of_threads) {
  Rng rng(2);
  const Tensor packed = test::random_tensor({1, 300, 3 * 2 * 16}, rng);
  AttentionOptions options;
  options.backend = GetParam();
  options.band = Band::causal(Anchor::bottom_right);
  std::vector<float> first;
  for (const int threads : {1, 2, 8}) {
    set_num_threads(threads);
    const Var qkv = Var::parameter(packed);
    Tape tape;
    const auto [q, k, v] = split_qkv(tape, qkv, 2);
    const Var out = merge_heads(tape, scaled_dot_product_attention(tape, q, k, v, {}, options));
    tape.backward(cross_entropy(tape, out, std::vector<std::int32_t>(300, 3)).loss);
    const std::vector<float> grad = test::values_of(qkv.grad());
    if (first.empty()) first = grad;
    EXPECT_EQ(grad, first) << threads << " threads";
  }
  set_num_threads(0);
}

INSTANTIATE_TEST_SUITE_P(All, AttentionBackends, ::testing::Values("unfused", "flash", "auto"));

TEST(Attention, I2_refusals_carry_the_reason) {
  Tape tape;
  const Var q(Tensor::zeros({1, 8, 4, 16}));
  const Var k(Tensor::zeros({1, 3, 4, 16}));
  EXPECT_ERROR_HAS(scaled_dot_product_attention(tape, q, k, k, {}, {}),
                   "kv_heads must divide q_heads");
  AttentionOptions options;
  options.backend = "fast";
  EXPECT_ERROR_HAS(scaled_dot_product_attention(tape, q, q, q, {}, options),
                   "must be unfused, flash or auto; got 'fast'");
  const Var flat(Tensor::zeros({4, 16}));
  EXPECT_ERROR_HAS(scaled_dot_product_attention(tape, q, flat, q, {}, {}),
                   "k must be [batch, heads, seq, head_dim]; got [4, 16]");
}

TEST(Attention, I2_unsupported_calls_name_backend_and_kernels) {
  Tape tape;
  const Var wide(Tensor::zeros({1, 1, 2, 513}));
  const std::string message =
      test::error_of([&] { (void)scaled_dot_product_attention(tape, wide, wide, wide, {}, {}); });
  EXPECT_NE(message.find("[attention] no forward by attention backend 'auto'"), std::string::npos)
      << message;
  EXPECT_NE(message.find("513"), std::string::npos) << message;
}

TEST(Attention, the_kernels_that_ran_are_in_the_job) {
  Rng rng(1);
  for (const char* backend : {"flash", "unfused"}) {
    Job job("test");
    AttentionOptions options;
    options.backend = backend;
    options.job = &job;
    Tape tape;
    const Var x = Var::parameter(test::random_tensor({1, 1, 8, 16}, rng));
    (void)scaled_dot_product_attention(tape, x, x, x, {}, options);
    ASSERT_EQ(job.kernels_ran().size(), 1U);
    EXPECT_TRUE(job.kernels_ran()[0].ends_with("forward")) << job.kernels_ran()[0];
  }
}

}  // namespace
}  // namespace fovea::lm
