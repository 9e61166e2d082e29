// The same call through different memory: every pair must agree bit for bit.
#include <cmath>
#include <limits>

#include "tests/oracle/tensors.h"

namespace fovea::oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void expect_same(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.shape(), b.shape());
  EXPECT_EQ(max_difference(a, b), 0);
}

/// b2 hq4 hkv2 q5 k7 d6 dv3 in f64, causal bottom right.
class Layouts : public testing::Test {
 protected:
  std::mt19937_64 random{11};
  Tensor q = Tensor::normal(DType::f64, {2, 4, 5, 6}, random);
  Tensor k = Tensor::normal(DType::f64, {2, 2, 7, 6}, random);
  Tensor v = Tensor::normal(DType::f64, {2, 2, 7, 3}, random);
  Tensor dout = Tensor::normal(DType::f64, {2, 4, 5, 3}, random);

  AttentionParams params() const {
    AttentionParams p;
    p.q = q.view();
    p.k = k.view();
    p.v = v.view();
    p.band = Band::causal(Anchor::bottom_right);
    return p;
  }
};

/// [batch, heads, seq, dim] -> memory [batch, seq, heads, dim].
Tensor rows_first(const Tensor& t) {
  const Shape& s = t.shape();
  Tensor copy(t.dtype(), {s[0], s[2], s[1], s[3]});
  for (std::int64_t b = 0; b < s[0]; ++b)
    for (std::int64_t h = 0; h < s[1]; ++h)
      for (std::int64_t i = 0; i < s[2]; ++i)
        for (std::int64_t d = 0; d < s[3]; ++d) copy.put({b, i, h, d}, t.at({b, h, i, d}));
  return copy;
}

/// Rows [begin, end) of dimension 2.
Tensor cut(const Tensor& t, std::int64_t begin, std::int64_t end) {
  const Shape& s = t.shape();
  Tensor part(t.dtype(), {s[0], s[1], end - begin, s[3]});
  for (std::int64_t b = 0; b < s[0]; ++b)
    for (std::int64_t h = 0; h < s[1]; ++h)
      for (std::int64_t i = begin; i < end; ++i)
        for (std::int64_t d = 0; d < s[3]; ++d) part.put({b, h, i - begin, d}, t.at({b, h, i, d}));
  return part;
}

/// One batch of t: [1, heads, seq, dim].
Tensor one_batch(const Tensor& t, std::int64_t b) {
  const Shape& s = t.shape();
  Tensor part(t.dtype(), {1, s[1], s[2], s[3]});
  for (std::int64_t n = 0; n < part.size(); ++n) part.set(n, t.get(b * part.size() + n));
  return part;
}

TEST_F(Layouts, rows_first_views) {
  const Outputs plain = forward_of(params());
  const Tensor q2 = rows_first(q), k2 = rows_first(k), v2 = rows_first(v);
  AttentionParams p = params();
  p.q = bshd(q2.view().data, DType::f64, 2, 5, 4, 6);
  p.k = bshd(k2.view().data, DType::f64, 2, 7, 2, 6);
  p.v = bshd(v2.view().data, DType::f64, 2, 7, 2, 3);
  expect_same(forward_of(p).out, plain.out);

  Tensor out2(DType::f64, {2, 5, 4, 3});
  run(ForwardArgs{p, bshd(out2.mutable_view().data, DType::f64, 2, 5, 4, 3), {}});
  expect_same(out2, rows_first(plain.out));
}

TEST_F(Layouts, packed_qkv_views) {
  const Tensor qkv = Tensor::normal(DType::f32, {2, 5, 3, 4, 6}, random);
  const auto views = packed_qkv(qkv.view().data, DType::f32, 2, 5, 4, 6);
  AttentionParams p;
  p.q = views.q;
  p.k = views.k;
  p.v = views.v;
  AttentionParams copies = p;
  std::vector<Tensor> parts;
  for (std::int64_t part = 0; part < 3; ++part) {
    Tensor& t = parts.emplace_back(DType::f32, Shape{2, 4, 5, 6});
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t h = 0; h < 4; ++h)
        for (std::int64_t i = 0; i < 5; ++i)
          for (std::int64_t d = 0; d < 6; ++d) t.put({b, h, i, d}, qkv.at({b, i, part, h, d}));
  }
  copies.q = parts[0].view();
  copies.k = parts[1].view();
  copies.v = parts[2].view();
  expect_same(forward_of(p).out, forward_of(copies).out);
}

TEST_F(Layouts, stride0_kv_and_reversed_strides) {
  // One KV head seen as four; rows of q from last to first.
  Tensor repeated_k(DType::f64, {2, 4, 7, 6}), repeated_v(DType::f64, {2, 4, 7, 3});
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t j = 0; j < 7; ++j) {
        for (std::int64_t d = 0; d < 6; ++d) repeated_k.put({b, h, j, d}, k.at({b, 0, j, d}));
        for (std::int64_t d = 0; d < 3; ++d) repeated_v.put({b, h, j, d}, v.at({b, 0, j, d}));
      }
  AttentionParams p = params(), expanded = params();
  p.k = repeated_k.view();
  p.v = repeated_v.view();
  expanded.k = TensorView(k.view().data, DType::f64, {2, 4, 7, 6}, {84, 0, 6, 1});
  expanded.v = TensorView(v.view().data, DType::f64, {2, 4, 7, 3}, {42, 0, 3, 1});
  const Outputs plain = forward_of(p);
  expect_same(forward_of(expanded).out, plain.out);

  Tensor reversed(DType::f64, {2, 4, 5, 6});
  for (std::int64_t n = 0; n < 2 * 4; ++n)
    for (std::int64_t i = 0; i < 5; ++i)
      for (std::int64_t d = 0; d < 6; ++d)
        reversed.set((n * 5 + 4 - i) * 6 + d, q.get((n * 5 + i) * 6 + d));
  TensorView backwards = reversed.view();
  backwards.data = static_cast<const double*>(backwards.data) + 4 * 6;
  backwards.strides[2] = -6;
  p.q = backwards;
  expect_same(forward_of(p).out, plain.out);
}

TEST_F(Layouts, segments_equal_their_concatenation) {
  const Tensor q1 = cut(q, 0, 2), q2 = cut(q, 2, 5), k1 = cut(k, 0, 1), k2 = cut(k, 1, 1),
               k3 = cut(k, 1, 4), k4 = cut(k, 4, 7), v1 = cut(v, 0, 5), v2 = cut(v, 5, 7);
  AttentionParams p = params();
  p.q = Operand().add(q1.view()).add(q2.view());
  p.k = Operand().add(k1.view()).add(k2.view()).add(k3.view()).add(k4.view());
  p.v = Operand().add(v1.view()).add(v2.view());
  const Outputs plain = forward_of(params());
  expect_same(forward_of(p).out, plain.out);

  // Results in segments of their own.
  Tensor out1(DType::f64, {2, 4, 3, 3}), out2(DType::f64, {2, 4, 2, 3});
  run(ForwardArgs{p, MutableOperand().add(out1.mutable_view()).add(out2.mutable_view()), {}});
  expect_same(out1, cut(plain.out, 0, 3));
  expect_same(out2, cut(plain.out, 3, 5));
}

TEST_F(Layouts, segmented_gradients_equal_their_concatenation) {
  Tensor dq(DType::f64, {2, 4, 5, 6}), dk(DType::f64, {2, 2, 7, 6});
  const Tensor lse(DType::f64, {2, 4, 5});
  BackwardArgs whole;
  whole.params = params();
  whole.out = whole.dout = dout.view();
  whole.lse = lse.view();
  whole.dq = dq.mutable_view();
  whole.dk = dk.mutable_view();
  run(whole);

  const Tensor q1 = cut(q, 0, 2), q2 = cut(q, 2, 5), dout1 = cut(dout, 0, 1),
               dout2 = cut(dout, 1, 5);
  Tensor dq1(DType::f64, {2, 4, 2, 6}), dq2(DType::f64, {2, 4, 3, 6}),
      dk2(DType::f64, {2, 2, 7, 6});
  BackwardArgs parts = whole;
  parts.params.q = Operand().add(q1.view()).add(q2.view());
  parts.dout = Operand().add(dout1.view()).add(dout2.view());
  parts.dq = MutableOperand().add(dq1.mutable_view()).add(dq2.mutable_view());
  parts.dk = dk2.mutable_view();
  run(parts);
  expect_same(dq1, cut(dq, 0, 2));
  expect_same(dq2, cut(dq, 2, 5));
  expect_same(dk2, dk);

  // A gradient of the second segment alone.
  Tensor only(DType::f64, {2, 4, 3, 6});
  parts.dq = MutableOperand().add({}).add(only.mutable_view());
  run(parts);
  expect_same(only, dq2);
}

TEST_F(Layouts, packed_sequences_equal_calls_of_their_own) {
  // Sequence b of the batch takes 5 - 2b queries and 7 - 3b keys.
  const std::int64_t q_lens[2] = {5, 3}, k_lens[2] = {7, 4};
  Tensor pq(DType::f64, {8, 4, 6}), pk(DType::f64, {11, 2, 6}), pv(DType::f64, {11, 2, 3});
  std::int64_t q_row = 0, k_row = 0;
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t i = 0; i < q_lens[b]; ++i, ++q_row)
      for (std::int64_t h = 0; h < 4; ++h)
        for (std::int64_t d = 0; d < 6; ++d) pq.put({q_row, h, d}, q.at({b, h, i, d}));
    for (std::int64_t j = 0; j < k_lens[b]; ++j, ++k_row)
      for (std::int64_t h = 0; h < 2; ++h) {
        for (std::int64_t d = 0; d < 6; ++d) pk.put({k_row, h, d}, k.at({b, h, j, d}));
        for (std::int64_t d = 0; d < 3; ++d) pv.put({k_row, h, d}, v.at({b, h, j, d}));
      }
  }
  const Tensor cu_q(DType::i32, {3}, {0, 5, 8}), cu_k(DType::i64, {3}, {0, 7, 11});
  AttentionParams p = params();
  p.q = pq.view();
  p.k = pk.view();
  p.v = pv.view();
  p.varlen = {cu_q.view(), cu_k.view(), 5, 7};
  p.dropout = {0.3, 5, 6, {}, {}, {}, 0, 0};
  const Outputs packed = forward_of(p);
  for (std::int64_t b = 0; b < 2; ++b) {
    const Tensor own_q = cut(one_batch(q, b), 0, q_lens[b]),
                 own_k = cut(one_batch(k, b), 0, k_lens[b]),
                 own_v = cut(one_batch(v, b), 0, k_lens[b]);
    const Tensor streams(DType::i32, {1, 4},
                         {4.0 * static_cast<double>(b), 4.0 * static_cast<double>(b) + 1,
                          4.0 * static_cast<double>(b) + 2, 4.0 * static_cast<double>(b) + 3});
    AttentionParams alone = params();
    alone.q = own_q.view();
    alone.k = own_k.view();
    alone.v = own_v.view();
    alone.dropout = p.dropout;
    alone.dropout.streams = streams.view();
    const Outputs single = forward_of(alone);
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t i = 0; i < q_lens[b]; ++i) {
        EXPECT_EQ(packed.lse.at({h, b * 5 + i}), single.lse.at({0, h, i}));
        for (std::int64_t d = 0; d < 3; ++d)
          EXPECT_EQ(packed.out.at({b * 5 + i, h, d}), single.out.at({0, h, i, d}));
      }
  }
}

TEST_F(Layouts, wrong_lengths_are_clamped) {
  // cu_seqlens beyond the tensor, falling, negative; a sequence longer than the stated maximum.
  const Tensor pq = Tensor::normal(DType::f64, {6, 1, 2}, random);
  struct Case {
    std::vector<double> cu;
    std::int64_t max_len;
    std::vector<bool> written;
  };
  for (const Case& c :
       {Case{{0, 4, 100}, 9, {1, 1, 1, 1, 1, 1}}, Case{{-7, 2, 1}, 9, {1, 1, 0, 0, 0, 0}},
        Case{{3, 5, 6}, 9, {0, 0, 0, 1, 1, 1}}, Case{{0, 4, 6}, 3, {1, 1, 1, 0, 1, 1}},
        Case{{1e12, 1e12, 1e12}, 9, {0, 0, 0, 0, 0, 0}}}) {
    const Tensor cu(DType::i64, {3}, c.cu);
    AttentionParams p;
    p.q = p.k = p.v = pq.view();
    p.varlen = {cu.view(), cu.view(), c.max_len, c.max_len};
    const Outputs result = forward_of(p);
    for (std::int64_t i = 0; i < 6; ++i) {
      EXPECT_EQ(!std::isnan(result.out.at({i, 0, 0})), c.written[static_cast<std::size_t>(i)]) << i;
      EXPECT_EQ(!std::isnan(result.lse.at({0, i})), c.written[static_cast<std::size_t>(i)]) << i;
    }
  }
  // An entry that falls counts as the one before it: no two sequences share a row.
  const Tensor falling(DType::i64, {4}, {0, 4, 2, 6}), raised(DType::i64, {4}, {0, 4, 4, 6});
  AttentionParams f, r;
  f.q = f.k = f.v = r.q = r.k = r.v = pq.view();
  f.varlen = {falling.view(), falling.view(), 9, 9};
  r.varlen = {raised.view(), raised.view(), 9, 9};
  expect_same(forward_of(f).out, forward_of(r).out);
  for (const double used : {-3.0, 0.0, 5.0, 7.0, 1e9}) {
    const auto length = static_cast<std::int64_t>(std::clamp(used, 0.0, 7.0));
    const Tensor seqused = Tensor::filled(DType::i32, {2}, used);
    const Tensor k2 = cut(k, 0, length), v2 = cut(v, 0, length);
    AttentionParams p = params(), shorter = params();
    p.seqused_k = seqused.view();
    shorter.k = k2.view();
    shorter.v = v2.view();
    expect_same(forward_of(p).out, forward_of(shorter).out);
  }
}

TEST_F(Layouts, pages_equal_their_gathered_rows) {
  // Three pages of three rows for each batch, in a shuffled pool of eight.
  const std::int64_t table_rows[2][3] = {{5, 0, 7}, {2, 6, 1}};
  Tensor pool_k = Tensor::filled(DType::f64, {8, 3, 2, 6}, std::nan("")),
         pool_v = Tensor::filled(DType::f64, {8, 3, 2, 3}, std::nan(""));
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t j = 0; j < 7; ++j)
      for (std::int64_t h = 0; h < 2; ++h) {
        for (std::int64_t d = 0; d < 6; ++d)
          pool_k.put({table_rows[b][j / 3], j % 3, h, d}, k.at({b, h, j, d}));
        for (std::int64_t d = 0; d < 3; ++d)
          pool_v.put({table_rows[b][j / 3], j % 3, h, d}, v.at({b, h, j, d}));
      }
  const Tensor table(DType::i32, {2, 3}, {5, 0, 7, 2, 6, 1}), used(DType::i32, {2}, {7, 4});
  AttentionParams p = params(), dense = params();
  p.k = pool_k.view();
  p.v = pool_v.view();
  p.paged = {table.view(), 9};
  p.seqused_k = dense.seqused_k = used.view();
  expect_same(forward_of(p).out, forward_of(dense).out);
  // A page that is not in the pool must not be read outside it.
  const Tensor bad(DType::i32, {2, 3}, {5, 0, 1000000, -5, 6, 1});
  p.paged.block_table = bad.view();
  forward_of(p);
}

TEST_F(Layouts, broadcast_masks_equal_expanded_ones) {
  for (const Shape& shape : {Shape{7}, Shape{5, 1}, Shape{4, 1, 7}, Shape{2, 1, 1, 7},
                             Shape{2, 1, 5, 7}, Shape{1, 4, 5, 1}, Shape{1, 1}}) {
    const Tensor mask = Tensor::normal(DType::f16, shape, random);
    Tensor full(DType::f16, {2, 4, 5, 7});
    Shape wide = shape;
    wide.insert(wide.begin(), 4 - shape.size(), 1);
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t h = 0; h < 4; ++h)
        for (std::int64_t i = 0; i < 5; ++i)
          for (std::int64_t j = 0; j < 7; ++j) {
            const Shape at{b, h, i, j};
            std::int64_t n = 0;
            for (std::size_t d = 0; d < 4; ++d) n = n * wide[d] + (wide[d] == 1 ? 0 : at[d]);
            full.put(at, mask.get(n));
          }
    AttentionParams p = params(), expanded = params();
    p.mask = mask.view();
    expanded.mask = full.view();
    expect_same(forward_of(p).out, forward_of(expanded).out);
  }
}

TEST_F(Layouts, band_equals_bool_mask_equals_additive_mask) {
  Tensor boolean(DType::boolean, {5, 7}), additive(DType::f32, {5, 7});
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t j = 0; j < 7; ++j) {
      const bool visible = j <= i + 2;
      boolean.put({i, j}, visible ? 1 : 0);
      additive.put({i, j}, visible ? 0 : -kInfinity);
    }
  AttentionParams masked = params(), biased = params();
  masked.band = biased.band = std::nullopt;
  masked.mask = transposed(transposed(boolean.view(), 0, 1), 0, 1);
  biased.mask = additive.view();
  const Outputs banded = forward_of(params());
  expect_same(forward_of(masked).out, banded.out);
  expect_same(forward_of(biased).lse, banded.lse);
}

TEST_F(Layouts, results_do_not_depend_on_threads) {
  const Tensor mask = Tensor::normal(DType::f64, {4, 1, 7}, random);
  const Tensor lse(DType::f64, {2, 4, 5}), weight = Tensor::normal(DType::f64, {6}, random);
  std::vector<Tensor> first;
  for (const bool with_mask : {false, true}) {
    for (const int threads : {1, 2, 3, 16}) {
      std::vector<Tensor> results{{DType::f64, {2, 4, 5, 6}}, {DType::f64, {2, 2, 7, 6}},
                                  {DType::f64, {2, 2, 7, 3}}, {DType::f64, {6}},
                                  {DType::f64, {4, 1, 7}},    {DType::f64, {2, 4, 5, 3}}};
      BackwardArgs a;
      a.params = params();
      a.params.q = Operand().add(q.view(), weight.view());
      a.params.qk_norm.enabled = true;
      a.out = a.dout = dout.view();
      a.lse = lse.view();
      a.dq = MutableOperand().add(results[0].mutable_view(), results[3].mutable_view());
      a.dk = results[1].mutable_view();
      a.dv = results[2].mutable_view();
      if (with_mask) {
        a.params.mask = mask.view();
        a.dmask = results[4].mutable_view();
      }
      CallOptions options;
      options.plan.self_check = false;
      options.plan.num_threads = threads;
      options.plan.choice.kernel = "cpu.reference.backward";
      ASSERT_TRUE(backward(a, options).ok());
      options.plan.choice.kernel = "cpu.reference.forward";
      ASSERT_TRUE(forward(ForwardArgs{a.params, results[5].mutable_view(), {}}, options).ok());
      if (threads == 1) first = results;
      for (std::size_t n = 0; n < results.size(); ++n) expect_same(results[n], first[n]);
    }
  }
}

TEST_F(Layouts, each_input_is_read_in_its_own_dtype) {
  // f32 q and k, f16 v under cast(f16): the same as q and k rounded to f16 beforehand.
  const auto converted = [](const Tensor& t, DType dtype) {
    return Tensor(dtype, t.shape(), t.values());
  };
  const Tensor q32 = converted(q, DType::f32), k32 = converted(k, DType::f32),
               q16 = converted(q32, DType::f16), k16 = converted(k32, DType::f16),
               v16 = converted(v, DType::f16);
  AttentionParams mixed = params(), plain = params();
  mixed.q = q32.view();
  mixed.k = k32.view();
  mixed.v = plain.v = v16.view();
  mixed.dtype_policy = DTypePolicy::cast(DType::f16);
  plain.q = q16.view();
  plain.k = k16.view();
  const Outputs a = forward_of(mixed), b = forward_of(plain);
  EXPECT_EQ(a.out.dtype(), DType::f16);
  expect_same(a.out, b.out);
  expect_same(a.lse, b.lse);
  // The same result in f32 on request, before its rounding.
  Tensor wide(DType::f32, {2, 4, 5, 3});
  run(ForwardArgs{plain, wide.mutable_view(), {}});
  expect_same(converted(wide, DType::f16), b.out);
  EXPECT_GT(max_difference(wide, b.out), 0);
}

}  // namespace
}  // namespace fovea::oracle
