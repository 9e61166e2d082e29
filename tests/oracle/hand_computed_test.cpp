// Cases whose results follow on paper. Most have head_dim 1, scale 1 and one head, so that
// s(i,j) = q_i k_j; the derivation stands beside each.
#include <cfloat>
#include <cmath>
#include <limits>

#include "tests/oracle/tensors.h"

namespace fovea::oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kLn2 = std::log(2.0), kLn3 = std::log(3.0);

/// One head of f64 rows with head_dim 1 and scale 1.
struct Line {
  Tensor q, k, v;
  Line(const std::vector<double>& q_values, const std::vector<double>& k_values,
       const std::vector<double>& v_values)
      : q(DType::f64, {1, 1, static_cast<std::int64_t>(q_values.size()), 1}, q_values),
        k(DType::f64, {1, 1, static_cast<std::int64_t>(k_values.size()), 1}, k_values),
        v(DType::f64, {1, 1, static_cast<std::int64_t>(v_values.size()), 1}, v_values) {}
  [[nodiscard]] AttentionParams params() const {
    AttentionParams p;
    p.q = q.view();
    p.k = k.view();
    p.v = v.view();
    p.scale = 1.0;
    return p;
  }
};

/// `rows` queries of 0 against keys whose values are 1, 2, 4, ...: all scores are 0, so that
/// out * exp(lse) is the sum of the visible keys' values and names the set that was seen.
std::vector<double> seen_sets(std::int64_t rows, std::int64_t keys, AttentionParams change) {
  std::vector<double> powers;
  for (std::int64_t j = 0; j < keys; ++j) powers.push_back(std::exp2(static_cast<double>(j)));
  const Line line(std::vector<double>(static_cast<std::size_t>(rows), 0.0),
                  std::vector<double>(static_cast<std::size_t>(keys), 1.0), powers);
  const AttentionParams p = line.params();
  change.q = p.q;
  change.k = p.k;
  change.v = p.v;
  const Outputs result = forward_of(change);
  std::vector<double> sets;
  for (std::int64_t i = 0; i < rows; ++i)
    sets.push_back(std::round(result.out.get(i) * std::exp(result.lse.get(i)) * 1e9) / 1e9);
  return sets;
}

AttentionParams with_band(const Band& band) {
  AttentionParams p;
  p.band = band;
  return p;
}

void expect_values(const Tensor& tensor, const std::vector<double>& expected) {
  ASSERT_EQ(tensor.size(), static_cast<std::int64_t>(expected.size()));
  for (std::int64_t n = 0; n < tensor.size(); ++n) {
    const double want = expected[static_cast<std::size_t>(n)];
    if (std::isinf(want))
      EXPECT_EQ(tensor.get(n), want) << n;
    else
      EXPECT_NEAR(tensor.get(n), want, 1e-13 * std::max(1.0, std::abs(want))) << n;
  }
}

TEST(HandComputed, two_keys) {
  // s = (0, ln 3), sum of exponentials 4, p = (1/4, 3/4), out = 10/4 + 60/4.
  const Line line({1}, {0, kLn3}, {10, 20});
  const Outputs result = forward_of(line.params());
  expect_values(result.out, {17.5});
  expect_values(result.lse, {std::log(4.0)});
}

TEST(HandComputed, default_scale_is_one_over_root_of_head_dim) {
  // q.k = 2 ln 3 at head_dim 4: s = (ln 3, 0), p = (3/4, 1/4).
  const Tensor q(DType::f64, {1, 1, 1, 4}, {2, 0, 0, 0});
  const Tensor k(DType::f64, {1, 1, 2, 4}, {kLn3, 5, 5, 5, 0, 7, 7, 7});
  const Tensor v(DType::f64, {1, 1, 2, 1}, {4, 8});
  AttentionParams p;
  p.q = q.view();
  p.k = k.view();
  p.v = v.view();
  expect_values(forward_of(p).out, {5});
}

TEST(HandComputed, zero_and_negative_scale) {
  const Line line({1}, {0, kLn3}, {10, 20});
  AttentionParams p = line.params();
  p.scale = 0.0;  // both scores 0
  expect_values(forward_of(p).out, {15});
  p.scale = -1.0;  // s = (0, -ln 3), p = (3/4, 1/4)
  expect_values(forward_of(p).out, {12.5});
}

TEST(HandComputed, v_head_dim_differs_from_head_dim) {
  const Line line({0}, {0, 0}, {0, 0});
  const Tensor v(DType::f64, {1, 1, 2, 3}, {1, 2, 3, 5, 6, 7});
  AttentionParams p = line.params();
  p.v = v.view();
  expect_values(forward_of(p).out, {3, 4, 5});
}

TEST(HandComputed, causal_top_left_and_bottom_right) {
  // Keys are the bits 1, 2, 4. Top left: row i sees j <= i. Bottom right with one key more than
  // queries: j <= i + 1.
  const auto top = with_band(Band::causal(Anchor::top_left));
  const auto bottom = with_band(Band::causal(Anchor::bottom_right));
  EXPECT_EQ(seen_sets(2, 3, top), (std::vector<double>{1, 1 + 2}));
  EXPECT_EQ(seen_sets(2, 3, bottom), (std::vector<double>{1 + 2, 1 + 2 + 4}));
  EXPECT_EQ(seen_sets(4, 2, top), (std::vector<double>{1, 3, 3, 3}));
}

TEST(HandComputed, causal_bottom_right_with_q_longer_than_kv) {
  // o = 1 - 3 = -2: row 2 sees key 0, rows 0 and 1 see nothing.
  const Line line({5, 5, 1}, {2}, {7});
  AttentionParams p = line.params();
  p.band = Band::causal(Anchor::bottom_right);
  const Outputs result = forward_of(p);
  expect_values(result.out, {0, 0, 7});
  expect_values(result.lse, {-kInfinity, -kInfinity, 2});
}

TEST(HandComputed, windows) {
  // Keys are the bits 1, 2, 4, 8; row i sees i - left <= j - o <= i + right.
  const auto sets = [](Anchor anchor, std::int64_t left, std::int64_t right, std::int64_t rows) {
    return seen_sets(rows, 4, with_band(Band::window(anchor, left, right)));
  };
  EXPECT_EQ(sets(Anchor::top_left, 1, 0, 4), (std::vector<double>{1, 3, 6, 12}));
  EXPECT_EQ(sets(Anchor::top_left, 0, 1, 4), (std::vector<double>{3, 6, 12, 8}));
  EXPECT_EQ(sets(Anchor::bottom_right, 1, 0, 2), (std::vector<double>{6, 12}));
  EXPECT_EQ(sets(Anchor::top_left, kUnbounded, 1, 3), (std::vector<double>{3, 7, 15}));
  EXPECT_EQ(sets(Anchor::top_left, 1, kUnbounded, 3), (std::vector<double>{15, 15, 14}));
  EXPECT_EQ(sets(Anchor::top_left, kUnbounded, kUnbounded, 1), (std::vector<double>{15}));
}

TEST(HandComputed, grouped_heads_read_their_group_s_kv_head) {
  const Tensor q = Tensor::filled(DType::f64, {1, 6, 1, 1}, 1);
  const Tensor k = Tensor::filled(DType::f64, {1, 2, 1, 1}, 1);
  const Tensor v(DType::f64, {1, 2, 1, 1}, {10, 20});
  AttentionParams p;
  p.q = q.view();
  p.k = k.view();
  p.v = v.view();
  expect_values(forward_of(p).out, {10, 10, 10, 20, 20, 20});
}

TEST(HandComputed, bool_mask_true_attends) {
  const Line line({1}, {0, kLn3, 9}, {10, 20, 30});
  const Tensor mask(DType::boolean, {3}, {1, 1, 0});
  AttentionParams p = line.params();
  p.mask = mask.view();
  expect_values(forward_of(p).out, {17.5});
}

TEST(HandComputed, zero_one_float_mask_is_additive) {
  // s = (0, 0) + (0, 1), p = (1, e) / (1 + e). As a bool mask it would give 20.
  const Line line({1}, {0, 0}, {10, 20});
  const Tensor mask(DType::f32, {2}, {0, 1});
  AttentionParams p = line.params();
  p.mask = mask.view();
  const double e = std::exp(1.0);
  expect_values(forward_of(p).out, {(10 + 20 * e) / (1 + e)});
}

TEST(HandComputed, minus_infinity_in_an_additive_mask_hides) {
  const Line line({1, 1}, {0, kLn3}, {10, 20});
  const Tensor mask(DType::f16, {2, 2}, {-kInfinity, 0, -kInfinity, -kInfinity});
  AttentionParams p = line.params();
  p.mask = mask.view();
  const Outputs result = forward_of(p);
  expect_values(result.out, {20, 0});
  expect_values(result.lse, {kLn3, -kInfinity});
}

TEST(HandComputed, row_of_lowest_floats_is_uniform) {
  // Both scores are raised to -FLT_MAX / log2(e): p = 1/2 each, not NaN.
  const Line line({1}, {0, kLn3}, {10, 20});
  const Tensor mask = Tensor::filled(DType::f32, {2}, -FLT_MAX);
  AttentionParams p = line.params();
  p.mask = mask.view();
  const Outputs result = forward_of(p);
  expect_values(result.out, {15});
  expect_values(result.lse, {-static_cast<double>(FLT_MAX) * kLn2});
}

TEST(HandComputed, softcap) {
  // 2 tanh(ln 3 / 2) = 2 (3 - 1) / (3 + 1) = 1, so s = (1, 0).
  const Line line({1}, {kLn3, 0}, {10, 20});
  AttentionParams p = line.params();
  p.softcap = 2;
  const double e = std::exp(1.0);
  expect_values(forward_of(p).out, {(10 * e + 20) / (1 + e)});
}

TEST(HandComputed, softcap_comes_before_the_mask) {
  // s = 1 + 100, not 2 tanh((ln 3 + 100) / 2) = 2.
  const Line line({1}, {kLn3}, {10});
  const Tensor mask(DType::f64, {1}, {100});
  AttentionParams p = line.params();
  p.softcap = 2;
  p.mask = mask.view();
  expect_values(forward_of(p).lse, {101});
}

TEST(HandComputed, alibi) {
  // Slope ln 2, one query, three keys. Top left: distances 0, 1, 2, weights 4, 2, 1 of 7. Bottom
  // right: distances 2, 1, 0.
  const Line line({0}, {0, 0, 0}, {7, 14, 28});
  const Tensor slopes(DType::f64, {1}, {kLn2});
  AttentionParams p = line.params();
  p.alibi = {slopes.view(), Anchor::top_left};
  expect_values(forward_of(p).out, {(4 * 7 + 2 * 14 + 28) / 7.0});
  p.alibi.anchor = Anchor::bottom_right;
  expect_values(forward_of(p).out, {(7 + 2 * 14 + 4 * 28) / 7.0});
}

TEST(HandComputed, alibi_slopes_per_batch_and_head) {
  // Query 0, keys at distances 0 and 1: lse = log(1 + exp(-slope)).
  const Tensor zeros = Tensor::filled(DType::f64, {2, 2, 1, 1}, 0);
  const Tensor keys = Tensor::filled(DType::f64, {2, 2, 2, 1}, 0);
  const Tensor slopes(DType::f64, {2, 2}, {0, kLn2, kLn3, -kLn2});
  AttentionParams p;
  p.q = zeros.view();
  p.k = keys.view();
  p.v = keys.view();
  p.alibi = {slopes.view(), Anchor::top_left};
  expect_values(forward_of(p).lse,
                {std::log(2.0), std::log(1.5), std::log(4.0 / 3), std::log(3.0)});
}

TEST(HandComputed, sink_takes_weight_and_no_value) {
  // One key of score 0 beside a sink of ln 3: p = 1/4, lse = ln 4.
  const Line line({0}, {0}, {8});
  const Tensor sink(DType::f64, {1}, {kLn3});
  AttentionParams p = line.params();
  p.sinks = sink.view();
  const Outputs result = forward_of(p);
  expect_values(result.out, {2});
  expect_values(result.lse, {std::log(4.0)});
}

TEST(HandComputed, row_that_sees_nothing_has_the_sink_s_lse) {
  const Line line({0}, {0}, {8});
  const Tensor mask(DType::boolean, {1}, {0}), sink(DType::f64, {1}, {kLn3}),
      no_sink(DType::f64, {1}, {-kInfinity});
  AttentionParams p = line.params();
  p.mask = mask.view();
  p.sinks = sink.view();
  Outputs result = forward_of(p);
  expect_values(result.out, {0});
  expect_values(result.lse, {kLn3});
  p.sinks = no_sink.view();
  result = forward_of(p);
  expect_values(result.out, {0});
  expect_values(result.lse, {-kInfinity});
}

TEST(HandComputed, partial_results_over_disjoint_keys_merge) {
  // lse = log(exp a + exp b), out = exp(a - lse) out_a + exp(b - lse) out_b.
  const std::vector<double> k{0.3, -1, 2, 0.5}, v{1, -2, 3, 5};
  const Line all({1.5}, k, v), head({1.5}, {k[0]}, {v[0]}),
      tail({1.5}, {k[1], k[2], k[3]}, {v[1], v[2], v[3]});
  const Outputs whole = forward_of(all.params()), a = forward_of(head.params()),
                b = forward_of(tail.params());
  const double lse = std::log(std::exp(a.lse.get(0)) + std::exp(b.lse.get(0)));
  expect_values(whole.lse, {lse});
  expect_values(whole.out, {std::exp(a.lse.get(0) - lse) * a.out.get(0) +
                            std::exp(b.lse.get(0) - lse) * b.out.get(0)});
}

TEST(HandComputed, visible_infinity_and_nan_propagate) {
  for (const double bad : {kInfinity, std::nan("")}) {
    const Line line({1, 1}, {0, bad}, {10, 20});
    AttentionParams p = line.params();
    p.band = Band::causal(Anchor::top_left);
    const Outputs result = forward_of(p);
    EXPECT_EQ(result.out.get(0), 10);  // does not see it
    EXPECT_TRUE(std::isnan(result.out.get(1)));
    EXPECT_FALSE(std::isfinite(result.lse.get(1)));
  }
}

TEST(HandComputed, infinite_scores) {
  // Visible scores of -inf alone: lse = log 0, p = 0, out = 0. One of +inf: lse = +inf.
  const Line low({1}, {-kInfinity, -kInfinity}, {10, 20}), high({1}, {0, kInfinity}, {10, 20});
  const Outputs nothing = forward_of(low.params()), everything = forward_of(high.params());
  expect_values(nothing.out, {0});
  expect_values(nothing.lse, {-kInfinity});
  expect_values(everything.lse, {kInfinity});
  EXPECT_TRUE(std::isnan(everything.out.get(0)));
  // Beside a finite score, -inf has no weight.
  const Line both({1}, {-kInfinity, 3}, {10, 20});
  expect_values(forward_of(both.params()).out, {20});
}

TEST(HandComputed, empty_shapes) {
  for (const auto& [batch, q_len, kv_len] :
       {std::array<std::int64_t, 3>{0, 2, 2}, {2, 0, 2}, {2, 2, 0}, {1, 0, 0}}) {
    const Tensor q = Tensor::filled(DType::f64, {batch, 2, q_len, 3}, 1);
    const Tensor k = Tensor::filled(DType::f64, {batch, 1, kv_len, 3}, 1);
    AttentionParams p;
    p.q = q.view();
    p.k = k.view();
    p.v = k.view();
    const Outputs result = forward_of(p);
    for (const double x : result.out.values()) EXPECT_EQ(x, 0);
    for (const double x : result.lse.values()) EXPECT_EQ(x, -kInfinity);
  }
}

}  // namespace
}  // namespace fovea::oracle
