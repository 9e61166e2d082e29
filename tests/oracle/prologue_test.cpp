// RoPE and QK-norm on paper. With one key and scale 1 the LSE is the score itself, so a unit vector
// as key reads one element of the query as the product sees it.
#include <cmath>

#include "tests/oracle/tensors.h"

namespace fovea::oracle {
namespace {

/// The rows of q after the prologue, element by element: [batch * q_len, head_dim].
std::vector<double> query_seen(AttentionParams p, const Tensor& q) {
  const std::int64_t batch = q.shape()[0], rows = q.shape()[2], dim = q.shape()[3];
  std::vector<double> seen(static_cast<std::size_t>(batch * rows * dim));
  for (std::int64_t d = 0; d < dim; ++d) {
    Tensor k = Tensor::filled(q.dtype(), {batch, 1, 1, dim}, 0);
    for (std::int64_t b = 0; b < batch; ++b) k.put({b, 0, 0, d}, 1);
    p.q = q.view();
    p.k = k.view();
    p.v = k.view();
    p.scale = 1.0;
    p.rope.rotate_k = false;
    const Outputs result = forward_of(p);
    for (std::int64_t row = 0; row < batch * rows; ++row)
      seen[static_cast<std::size_t>(row * dim + d)] = result.lse.get(row);
  }
  return seen;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t n = 0; n < got.size(); ++n) EXPECT_NEAR(got[n], want[n], 1e-14) << n;
}

TEST(Prologue, rope_styles_by_a_quarter_turn) {
  // (a, b) -> (-b, a); pairs (0,1) (2,3) interleaved, (0,2) (1,3) half.
  const Tensor q(DType::f64, {1, 1, 1, 4}, {1, 2, 3, 4});
  const Tensor cos(DType::f32, {1, 2}, {0, 0}), sin(DType::f32, {1, 2}, {1, 1});
  AttentionParams p;
  p.rope.cos = cos.view();
  p.rope.sin = sin.view();
  p.rope.style = RopeStyle::interleaved;
  expect_near(query_seen(p, q), {-2, 1, -4, 3});
  p.rope.style = RopeStyle::half;
  expect_near(query_seen(p, q), {-3, -4, 1, 2});
  p.rope.rotate_q = false;
  expect_near(query_seen(p, q), {1, 2, 3, 4});
}

TEST(Prologue, rope_pairs_have_their_own_angle) {
  // Pair 0 turns by a half, pair 1 not at all.
  const Tensor q(DType::f64, {1, 1, 1, 4}, {1, 2, 3, 4});
  const Tensor cos(DType::f64, {1, 2}, {-1, 1}), sin(DType::f64, {1, 2}, {0, 0});
  AttentionParams p;
  p.rope.cos = cos.view();
  p.rope.sin = sin.view();
  p.rope.style = RopeStyle::interleaved;
  expect_near(query_seen(p, q), {-1, -2, 3, 4});
  p.rope.style = RopeStyle::half;
  expect_near(query_seen(p, q), {-1, 2, -3, 4});
}

TEST(Prologue, duplicated_tables_follow_the_style) {
  // The values of pairs (0, 1) are (2, 3): interleaved 2 2 3 3, half 2 3 2 3 (a scale, no turn).
  const Tensor q(DType::f64, {1, 1, 1, 4}, {1, 1, 1, 1});
  const Tensor sin = Tensor::filled(DType::f64, {1, 4}, 0);
  const Tensor interleaved(DType::bf16, {1, 4}, {2, 2, 3, 3});
  const Tensor half(DType::bf16, {1, 4}, {2, 3, 2, 3});
  AttentionParams p;
  p.rope.sin = sin.view();
  p.rope.table = RopeTable::duplicated;
  p.rope.style = RopeStyle::interleaved;
  p.rope.cos = interleaved.view();
  expect_near(query_seen(p, q), {2, 2, 3, 3});
  p.rope.style = RopeStyle::half;
  p.rope.cos = half.view();
  expect_near(query_seen(p, q), {2, 3, 2, 3});
}

TEST(Prologue, elements_beyond_rotary_dim_pass) {
  const Tensor q(DType::f64, {1, 1, 1, 5}, {1, 2, 3, 4, 5});
  const Tensor cos(DType::f64, {1, 1}, {0}), sin(DType::f64, {1, 1}, {1});
  AttentionParams p;
  p.rope.cos = cos.view();
  p.rope.sin = sin.view();
  p.rope.rotary_dim = 2;
  expect_near(query_seen(p, q), {-2, 1, 3, 4, 5});
}

TEST(Prologue, table_row_is_position_plus_offsets) {
  // The table scales row n by n (cos = n, sin = 0), so the scale names the row that was read.
  const Tensor q = Tensor::filled(DType::f64, {2, 1, 2, 2}, 1);
  const Tensor cos(DType::f64, {6, 1}, {0, 1, 2, 3, 4, 5});
  const Tensor sin = Tensor::filled(DType::f64, {6, 1}, 0);
  const Tensor offsets(DType::i32, {2}, {1, 2});
  AttentionParams p;
  p.rope.cos = cos.view();
  p.rope.sin = sin.view();
  expect_near(query_seen(p, q), {0, 0, 1, 1, 0, 0, 1, 1});
  p.rope.q_offset = 2;
  expect_near(query_seen(p, q), {2, 2, 3, 3, 2, 2, 3, 3});
  p.rope.q_offsets = offsets.view();
  expect_near(query_seen(p, q), {3, 3, 4, 4, 4, 4, 5, 5});
}

TEST(Prologue, tables_per_batch) {
  const Tensor q = Tensor::filled(DType::f64, {2, 1, 2, 2}, 1);
  const Tensor cos(DType::f64, {2, 2, 1}, {1, 2, 3, 4}), shared(DType::f64, {1, 2, 1}, {5, 6});
  const Tensor sin = Tensor::filled(DType::f64, {2, 2, 1}, 0),
               shared_sin = Tensor::filled(DType::f64, {1, 2, 1}, 0);
  AttentionParams p;
  p.rope.cos = cos.view();
  p.rope.sin = sin.view();
  expect_near(query_seen(p, q), {1, 1, 2, 2, 3, 3, 4, 4});
  p.rope.cos = shared.view();
  p.rope.sin = shared_sin.view();
  expect_near(query_seen(p, q), {5, 5, 6, 6, 5, 5, 6, 6});
}

TEST(Prologue, keys_turn_by_their_own_offset) {
  // One query and one key, both (1, 0), turned by quarter turns 1 and 1 + k_offset: the score is
  // the cosine of the difference.
  const Tensor q(DType::f64, {1, 1, 1, 2}, {1, 0});
  const Tensor cos(DType::f64, {4, 1}, {1, 0, -1, 0}), sin(DType::f64, {4, 1}, {0, 1, 0, -1});
  const Tensor one_more(DType::i64, {1}, {1});
  AttentionParams p;
  p.q = p.k = p.v = q.view();
  p.scale = 1.0;
  p.rope.cos = cos.view();
  p.rope.sin = sin.view();
  p.rope.q_offset = 1;
  const auto score = [&] { return forward_of(p).lse.get(0); };
  p.rope.k_offset = 1;
  EXPECT_NEAR(score(), 1, 1e-15);
  p.rope.k_offset = 2;
  EXPECT_NEAR(score(), 0, 1e-15);
  p.rope.k_offsets = one_more.view();
  EXPECT_NEAR(score(), -1, 1e-15);
  p.rope.rotate_k = false;  // a quarter turn against none
  EXPECT_NEAR(score(), 0, 1e-15);
}

TEST(Prologue, rms_norm) {
  // Mean square of (3, 4) is 12.5; with eps 3.5 the root is 4. The key (1, 1) has mean square 1
  // and, with eps 3.5, the factor 1 / sqrt(4.5); its weights pick one element.
  const Tensor q(DType::f64, {1, 1, 1, 2}, {3, 4}), k(DType::f64, {1, 1, 1, 2}, {1, 1});
  const Tensor q_weight(DType::f32, {2}, {2, 10});
  AttentionParams p;
  p.scale = 1.0;
  p.v = k.view();
  p.qk_norm.enabled = true;
  p.qk_norm.eps = 3.5;
  for (const int element : {0, 1}) {
    const Tensor pick(DType::f64, {2}, {element == 0 ? 1.0 : 0.0, element == 1 ? 1.0 : 0.0});
    p.q = Operand().add(q.view(), q_weight.view());
    p.k = Operand().add(k.view(), pick.view());
    const double expected = element == 0 ? 3.0 / 4 * 2 : 4.0 / 4 * 10;
    EXPECT_NEAR(forward_of(p).lse.get(0), expected / std::sqrt(4.5), 1e-14);
    p.q = Operand().add(q.view());  // no weight: ones
    EXPECT_NEAR(forward_of(p).lse.get(0), (element == 0 ? 0.75 : 1.0) / std::sqrt(4.5), 1e-14);
  }
}

TEST(Prologue, norm_comes_before_rope) {
  // Weights (0, 1) and a quarter turn: (a, b) -> (0, b / rms) -> (-b / rms, 0). The key (2, 0) with
  // weight 1 has root mean square sqrt(2), so it reads sqrt(2) times the first element.
  const Tensor q(DType::f64, {1, 1, 1, 2}, {1, 7}), k(DType::f64, {1, 1, 1, 2}, {2, 0});
  const Tensor weight(DType::f64, {2}, {0, 1});
  const Tensor cos(DType::f64, {1, 1}, {0}), sin(DType::f64, {1, 1}, {1});
  AttentionParams p;
  p.q = Operand().add(q.view(), weight.view());
  p.k = p.v = k.view();
  p.scale = 1.0;
  p.qk_norm = {true, 0};
  p.rope.cos = cos.view();
  p.rope.sin = sin.view();
  p.rope.rotate_k = false;
  // rms of (1, 7) = sqrt(25) = 5
  EXPECT_NEAR(forward_of(p).lse.get(0), -7.0 / 5 * std::sqrt(2.0), 1e-14);
}

TEST(Prologue, segments_have_their_own_weights_and_count_positions_on) {
  // Two q segments of one row each; the table scales row n by n + 1.
  const Tensor text(DType::f64, {1, 1, 1, 2}, {3, 3}), image(DType::f64, {1, 1, 1, 2}, {5, 5});
  const Tensor text_weight(DType::f64, {2}, {10, 10}), image_weight(DType::f64, {2}, {100, 100});
  const Tensor cos(DType::f64, {2, 1}, {1, 2}), sin(DType::f64, {2, 1}, {0, 0});
  const Tensor k(DType::f64, {1, 1, 1, 2}, {1, 1}), k_weight(DType::f64, {2}, {1, 0});
  AttentionParams p;
  p.q = Operand().add(text.view(), text_weight.view()).add(image.view(), image_weight.view());
  p.k = Operand().add(k.view(), k_weight.view());
  p.v = k.view();
  p.scale = 1.0;
  p.qk_norm = {true, 0};
  p.rope.cos = cos.view();
  p.rope.sin = sin.view();
  p.rope.rotate_k = false;
  const Outputs result = forward_of(p);
  EXPECT_NEAR(result.lse.get(0), 10, 1e-13);
  EXPECT_NEAR(result.lse.get(1), 200, 1e-13);
}

TEST(Prologue, operands_are_rounded_once_to_the_compute_dtype) {
  // bf16 has 8 significant bits: 1 + 2^-8 + 2^-40 lies just above the middle of 1 and 1 + 2^-7 and
  // rounds up, where rounding to f32 first would make it a tie and round it down. RoPE's table
  // scales 1 by it.
  const double above_tie = 1 + 0x1p-8 + 0x1p-40;
  const Tensor q(DType::f32, {1, 1, 1, 2}, {1, 0}), k(DType::bf16, {1, 1, 1, 2}, {1, 0});
  const Tensor cos(DType::f64, {1, 1}, {above_tie}), sin(DType::f64, {1, 1}, {0});
  AttentionParams p;
  p.q = q.view();
  p.k = p.v = k.view();
  p.scale = 1.0;
  p.dtype_policy = DTypePolicy::cast(DType::bf16);
  p.rope.cos = cos.view();
  p.rope.sin = sin.view();
  p.rope.rotate_k = false;
  EXPECT_EQ(forward_of(p).lse.get(0), 1 + 0x1p-7);
  // Without a prologue the f32 query is rounded too.
  const Tensor plain(DType::f32, {1, 1, 1, 2}, {1 + 0x1p-9, 0});
  p.rope = {};
  p.q = plain.view();
  EXPECT_EQ(forward_of(p).lse.get(0), 1);
}

}  // namespace
}  // namespace fovea::oracle
