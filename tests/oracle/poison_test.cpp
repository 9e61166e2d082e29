// NaN and infinity in everything that a row does not see: nothing of it may reach a result.
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "tests/oracle/tensors.h"

namespace fovea::oracle {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Forward and all gradients of one call; every buffer starts as NaN.
struct Everything {
  Tensor out, lse, dq, dk, dv;
};

Everything run_all(const AttentionParams& params, const Tensor& q, const Tensor& k, const Tensor& v,
                   const Tensor& dout) {
  Outputs forward = forward_of(params);
  Everything all{forward.out, forward.lse, Tensor::filled(DType::f64, q.shape(), kNaN),
                 Tensor::filled(DType::f64, k.shape(), kNaN),
                 Tensor::filled(DType::f64, v.shape(), kNaN)};
  BackwardArgs a;
  a.params = params;
  a.out = forward.out.view();
  a.lse = forward.lse.view();
  a.dout = dout.view();
  a.dq = all.dq.mutable_view();
  a.dk = all.dk.mutable_view();
  a.dv = all.dv.mutable_view();
  run(a);
  return all;
}

void set_row(Tensor& t, std::int64_t b, std::int64_t row, double value) {
  for (std::int64_t h = 0; h < t.shape()[1]; ++h)
    for (std::int64_t d = 0; d < t.shape()[3]; ++d) t.put({b, h, row, d}, value);
}

class Poison : public testing::Test {
 protected:
  std::mt19937_64 random{5};
  Tensor q = Tensor::normal(DType::f64, {2, 2, 4, 4}, random);
  Tensor k = Tensor::normal(DType::f64, {2, 1, 6, 4}, random);
  Tensor v = Tensor::normal(DType::f64, {2, 1, 6, 4}, random);
  Tensor dout = Tensor::normal(DType::f64, {2, 2, 4, 4}, random);
  Tensor weight = Tensor::normal(DType::f64, {4}, random);
  Tensor cos = Tensor::normal(DType::f64, {6, 2}, random);
  Tensor sin = Tensor::normal(DType::f64, {6, 2}, random);

  AttentionParams params(bool prologue) const {
    AttentionParams p;
    p.q = q.view();
    p.k = k.view();
    p.v = v.view();
    if (prologue) {
      p.k = Operand().add(k.view(), weight.view());
      p.qk_norm.enabled = true;
      p.rope.cos = cos.view();
      p.rope.sin = sin.view();
    }
    return p;
  }

  /// The call gives the same with clean and with poisoned rows [begin, 6) of each batch's k and v.
  void expect_unaffected(const std::function<void(AttentionParams&)>& change,
                         const std::array<std::int64_t, 2>& begin) {
    for (const bool prologue : {false, true}) {
      for (const double bad : {kNaN, kInfinity, -kInfinity}) {
        AttentionParams clean = params(prologue);
        change(clean);
        const Everything want = run_all(clean, q, k, v, dout);
        const Tensor k_before = k, v_before = v;
        for (std::int64_t b = 0; b < 2; ++b)
          for (std::int64_t j = begin[static_cast<std::size_t>(b)]; j < 6; ++j) {
            set_row(k, b, j, bad);
            set_row(v, b, j, bad);
          }
        AttentionParams poisoned = params(prologue);
        change(poisoned);
        const Everything got = run_all(poisoned, q, k, v, dout);
        k = k_before;
        v = v_before;
        for (const auto& [a, b] : {std::pair{&got.out, &want.out},
                                   {&got.lse, &want.lse},
                                   {&got.dq, &want.dq},
                                   {&got.dk, &want.dk},
                                   {&got.dv, &want.dv}})
          EXPECT_EQ(max_difference(*a, *b), 0);
        for (const double x : got.dk.values()) EXPECT_TRUE(std::isfinite(x));
        for (std::int64_t b = 0; b < 2; ++b)
          for (std::int64_t j = begin[static_cast<std::size_t>(b)]; j < 6; ++j)
            EXPECT_EQ(got.dk.at({b, 0, j, 1}), 0);
      }
    }
  }
};

TEST_F(Poison, keys_beyond_seqused) {
  const Tensor used(DType::i32, {2}, {4, 0});
  expect_unaffected([&](AttentionParams& p) { p.seqused_k = used.view(); }, {4, 0});
}

TEST_F(Poison, keys_beyond_the_band_of_every_row) {
  // Top left: the last of four rows sees keys up to 3.
  expect_unaffected([](AttentionParams& p) { p.band = Band::causal(Anchor::top_left); }, {4, 4});
}

TEST_F(Poison, keys_hidden_by_a_mask_from_every_row) {
  const Tensor mask(DType::boolean, {2, 1, 1, 6}, {1, 1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0});
  expect_unaffected([&](AttentionParams& p) { p.mask = mask.view(); }, {5, 1});
}

TEST_F(Poison, keys_hidden_by_minus_infinity_from_every_row) {
  const Tensor mask(DType::f32, {1, 6}, {0, 1, -1, 0, -kInfinity, -kInfinity});
  expect_unaffected([&](AttentionParams& p) { p.mask = mask.view(); }, {4, 4});
}

TEST_F(Poison, a_bad_key_reaches_the_rows_that_see_it_and_no_other) {
  set_row(k, 0, 2, kNaN);
  AttentionParams p = params(false);
  p.band = Band::causal(Anchor::top_left);
  const Outputs result = forward_of(p);
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t h = 0; h < 2; ++h)
      for (std::int64_t i = 0; i < 4; ++i)
        EXPECT_EQ(std::isnan(result.out.at({b, h, i, 0})), b == 0 && i >= 2);
}

TEST_F(Poison, a_bad_value_reaches_the_rows_that_see_it_even_when_dropped) {
  set_row(v, 1, 0, kInfinity);
  AttentionParams p = params(false);
  p.dropout.probability = 0.5;
  const Outputs result = forward_of(p);
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t i = 0; i < 4; ++i)
      EXPECT_EQ(std::isfinite(result.out.at({b, 0, i, 0})), b == 0);
}

TEST_F(Poison, mask_beyond_the_band_is_not_read) {
  Tensor mask(DType::f32, {4, 6});
  for (std::int64_t i = 0; i < 4; ++i)
    for (std::int64_t j = 0; j < 6; ++j) mask.put({i, j}, j <= i ? 0.5 : kNaN);
  AttentionParams p = params(false);
  p.band = Band::causal(Anchor::top_left);
  const Outputs plain = forward_of(p);
  p.mask = mask.view();
  EXPECT_LE(max_difference(forward_of(p).out, plain.out), 1e-15);
}

TEST_F(Poison, queries_that_see_nothing) {
  // Four queries, two keys, bottom right: rows 0 and 1 see nothing; their q and dout are NaN.
  const Tensor used(DType::i64, {2}, {2, 2});
  for (const bool prologue : {false, true}) {
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t i = 0; i < 2; ++i) {
        set_row(q, b, i, kNaN);
        set_row(dout, b, i, kNaN);
      }
    AttentionParams p = params(prologue);
    p.seqused_k = used.view();
    p.band = Band::causal(Anchor::bottom_right);
    const Everything all = run_all(p, q, k, v, dout);
    for (const Tensor* t : {&all.out, &all.dq, &all.dk, &all.dv})
      for (const double x : t->values()) EXPECT_TRUE(std::isfinite(x));
    for (std::int64_t i = 0; i < 2; ++i) {
      EXPECT_EQ(all.lse.at({0, 0, i}), -kInfinity);
      EXPECT_EQ(all.out.at({0, 0, i, 0}), 0);
      EXPECT_EQ(all.dq.at({0, 0, i, 0}), 0);
    }
  }
}

TEST_F(Poison, pages_and_their_tails) {
  // Page 1 is nobody's, page 0 is half used.
  Tensor pool = Tensor::normal(DType::f64, {3, 2, 1, 4}, random);
  for (std::int64_t d = 0; d < 4; ++d) {
    pool.put({1, 0, 0, d}, kNaN);
    pool.put({1, 1, 0, d}, kNaN);
    pool.put({0, 1, 0, d}, kNaN);
  }
  const Tensor table(DType::i32, {2, 2}, {2, 0, 0, 1}), used(DType::i32, {2}, {3, 1});
  AttentionParams p;
  p.q = q.view();
  p.k = p.v = pool.view();
  p.paged = {table.view(), 4};
  p.seqused_k = used.view();
  for (const double x : forward_of(p).out.values()) EXPECT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace fovea::oracle
