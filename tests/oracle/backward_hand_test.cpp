// Gradients that follow on paper.
#include <cmath>
#include <limits>

#include "contract/kernel.h"
#include "tests/oracle/tensors.h"

namespace fovea {
extern const Kernel cpu_reference_backward, cpu_baseline_backward;
}

namespace fovea::oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Two keys k = (2, 6), v = (0, 1), one query q = 4. The mask -q k levels the scores to 0, so
/// p = (1/2, 1/2), out = 1/2 and, with dout = 1: delta = 1/2, ds = (1/2 (0 - 1/2), 1/2 (1 - 1/2)) =
/// (-1/4, 1/4).
class TwoKeys : public testing::Test {
 protected:
  Tensor q{DType::f64, {1, 1, 1, 1}, {4}}, k{DType::f64, {1, 1, 2, 1}, {2, 6}},
      v{DType::f64, {1, 1, 2, 1}, {0, 1}}, mask{DType::f64, {2}, {-8, -24}};
  Tensor out{DType::f64, {1, 1, 1, 1}}, lse{DType::f64, {1, 1, 1}};
  Tensor dout{DType::f64, {1, 1, 1, 1}, {1}};
  Tensor dq{DType::f64, {1, 1, 1, 1}}, dk{DType::f64, {1, 1, 2, 1}}, dv{DType::f64, {1, 1, 2, 1}},
      dmask{DType::f64, {2}};

  BackwardArgs args() {
    BackwardArgs a;
    a.params.q = q.view();
    a.params.k = k.view();
    a.params.v = v.view();
    a.params.scale = 1.0;
    a.params.mask = mask.view();
    a.out = out.view();
    a.lse = lse.view();
    a.dout = dout.view();
    a.dq = dq.mutable_view();
    a.dk = dk.mutable_view();
    a.dv = dv.mutable_view();
    a.dmask = dmask.mutable_view();
    return a;
  }
};

TEST_F(TwoKeys, gradients) {
  run(args());
  EXPECT_EQ(dmask.values(), (std::vector<double>{-0.25, 0.25}));
  EXPECT_EQ(dq.values(), (std::vector<double>{-0.25 * 2 + 0.25 * 6}));
  EXPECT_EQ(dk.values(), (std::vector<double>{-0.25 * 4, 0.25 * 4}));
  EXPECT_EQ(dv.values(), (std::vector<double>{0.5, 0.5}));
}

TEST_F(TwoKeys, scale_multiplies_dq_and_dk_but_not_dmask) {
  mask = Tensor(DType::f64, {2}, {-16, -48});
  BackwardArgs a = args();
  a.params.scale = 2.0;
  run(a);
  EXPECT_EQ(dmask.values(), (std::vector<double>{-0.25, 0.25}));
  EXPECT_EQ(dq.values(), (std::vector<double>{2}));
  EXPECT_EQ(dk.values(), (std::vector<double>{-2, 2}));
}

TEST_F(TwoKeys, dlse_adds_p) {
  // dL/ds gains dlse p = 3/2 each.
  const Tensor dlse(DType::f64, {1, 1, 1}, {3});
  BackwardArgs a = args();
  a.dlse = dlse.view();
  run(a);
  EXPECT_EQ(dmask.values(), (std::vector<double>{1.25, 1.75}));
}

TEST_F(TwoKeys, saved_results_are_not_trusted) {
  out.set(0, 100);
  lse.set(0, -7);
  run(args());
  EXPECT_EQ(dmask.values(), (std::vector<double>{-0.25, 0.25}));
}

TEST_F(TwoKeys, sink) {
  // A sink of ln 2 beside two scores of 0: p = 1/4 each, 1/2 for the sink; out = delta = 1/4,
  // ds = (-1/16, 3/16), dsink = 1/2 (0 - 1/4).
  const Tensor sink(DType::f64, {1}, {std::log(2.0)});
  Tensor dsink(DType::f64, {1});
  BackwardArgs a = args();
  a.params.sinks = sink.view();
  a.dsinks = dsink.mutable_view();
  run(a);
  EXPECT_NEAR(dmask.get(0), -1.0 / 16, 1e-15);
  EXPECT_NEAR(dmask.get(1), 3.0 / 16, 1e-15);
  EXPECT_NEAR(dsink.get(0), -1.0 / 8, 1e-15);
  const Tensor no_sink(DType::f64, {1}, {-kInfinity});
  a.params.sinks = no_sink.view();
  run(a);
  EXPECT_EQ(dsink.get(0), 0);
  EXPECT_EQ(dmask.values(), (std::vector<double>{-0.25, 0.25}));
}

TEST_F(TwoKeys, softcap_slope_reaches_q_and_k_but_not_the_mask) {
  // c = 8 over q k = (8, 24): slope 1 - tanh^2; the mask levels the capped scores.
  const double t[2] = {std::tanh(1.0), std::tanh(3.0)};
  mask = Tensor(DType::f64, {2}, {-8 * t[0], -8 * t[1]});
  BackwardArgs a = args();
  a.params.softcap = 8;
  run(a);
  EXPECT_NEAR(dmask.get(0), -0.25, 1e-15);
  EXPECT_NEAR(dk.get(0), -0.25 * (1 - t[0] * t[0]) * 4, 1e-15);
  EXPECT_NEAR(dk.get(1), 0.25 * (1 - t[1] * t[1]) * 4, 1e-15);
}

TEST_F(TwoKeys, row_that_sees_nothing_has_zero_gradients) {
  const Tensor hidden(DType::f64, {2}, {-kInfinity, -kInfinity});
  const Tensor dlse(DType::f64, {1, 1, 1}, {std::nan("")});
  BackwardArgs a = args();
  a.params.mask = hidden.view();
  a.dlse = dlse.view();
  run(a);
  for (const Tensor* gradient : {&dq, &dk, &dv, &dmask})
    for (const double x : gradient->values()) EXPECT_EQ(x, 0);
}

TEST_F(TwoKeys, row_whose_scores_are_all_minus_infinity_has_zero_gradients) {
  // Its lse is -inf, so every p is 0: neither 0 * -inf nor 0 * dlse may turn into NaN.
  k = Tensor(DType::f64, {1, 1, 2, 1}, {-kInfinity, -kInfinity});
  const Tensor dlse(DType::f64, {1, 1, 1}, {std::nan("")});
  BackwardArgs a = args();
  a.dlse = dlse.view();
  run(a);
  for (const Tensor* gradient : {&dq, &dk, &dv, &dmask})
    for (const double x : gradient->values()) EXPECT_EQ(x, 0);
}

TEST(BackwardHand, mask_gradient_is_reduced_over_broadcast_dimensions) {
  // Two batches, two heads, two rows, all with ds = (-1/4, 1/4) as above.
  const Tensor q = Tensor::filled(DType::f64, {2, 2, 2, 1}, 0);
  const Tensor k = Tensor::filled(DType::f64, {2, 2, 2, 1}, 0);
  Tensor v(DType::f64, {2, 2, 2, 1}, {0, 1, 0, 1, 0, 1, 0, 1});
  const Tensor dout = Tensor::filled(DType::f64, {2, 2, 2, 1}, 1);
  const Tensor lse(DType::f64, {2, 2, 2});
  struct Case {
    Shape shape;
    double terms;
  };
  for (const Case& c : {Case{{2}, 8},
                        {{2, 2}, 4},
                        {{1, 2}, 8},
                        {{2, 1, 2}, 4},
                        {{2, 1, 2, 2}, 2},
                        {{2, 2, 1, 2}, 2},
                        {{2, 2, 2, 2}, 1},
                        {{1, 1, 1, 2}, 8}}) {
    const Tensor mask = Tensor::filled(DType::f32, c.shape, 0);
    Tensor dmask = Tensor::filled(DType::f32, c.shape, std::nan(""));
    BackwardArgs a;
    a.params.q = q.view();
    a.params.k = k.view();
    a.params.v = v.view();
    a.params.mask = mask.view();
    a.out = dout.view();
    a.lse = lse.view();
    a.dout = dout.view();
    a.dmask = dmask.mutable_view();
    run(a);
    for (std::int64_t n = 0; n < dmask.size(); ++n)
      EXPECT_EQ(dmask.get(n), (n % 2 == 0 ? -0.25 : 0.25) * c.terms);
  }
  // Broadcast over the keys: the two ds cancel.
  const Tensor mask = Tensor::filled(DType::f32, {2, 1}, 0);
  Tensor dmask = Tensor::filled(DType::f32, {2, 1}, std::nan(""));
  BackwardArgs a;
  a.params.q = q.view();
  a.params.k = k.view();
  a.params.v = v.view();
  a.params.mask = mask.view();
  a.out = a.dout = dout.view();
  a.lse = lse.view();
  a.dmask = dmask.mutable_view();
  run(a);
  EXPECT_EQ(dmask.values(), (std::vector<double>{0, 0}));
}

TEST(BackwardHand, gradients_of_a_group_add_up_in_their_kv_head) {
  // One key: p = 1, so dv is the sum of dout over the group's heads and rows.
  const Tensor q = Tensor::filled(DType::f64, {1, 4, 2, 1}, 1);
  const Tensor k = Tensor::filled(DType::f64, {1, 2, 1, 1}, 1);
  const Tensor dout(DType::f64, {1, 4, 2, 1}, {1, 2, 3, 4, 10, 20, 30, 40});
  const Tensor lse(DType::f64, {1, 4, 2});
  Tensor dv(DType::f64, {1, 2, 1, 1});
  BackwardArgs a;
  a.params.q = q.view();
  a.params.k = a.params.v = k.view();
  a.out = a.dout = dout.view();
  a.lse = lse.view();
  a.dv = dv.mutable_view();
  run(a);
  EXPECT_EQ(dv.values(), (std::vector<double>{10, 100}));
}

TEST(BackwardHand, gradients_come_in_their_input_s_dtype_or_f32) {
  // dv = dout = 1 + 2^-9, which f16 holds and bf16 rounds to 1.
  const Tensor q = Tensor::filled(DType::f32, {1, 1, 1, 1}, 1),
               v = Tensor::filled(DType::bf16, {1, 1, 1, 1}, 1),
               dout = Tensor::filled(DType::f16, {1, 1, 1, 1}, 1 + 0x1p-9);
  const Tensor lse(DType::f32, {1, 1, 1});
  for (const DType dtype : {DType::bf16, DType::f32}) {
    Tensor dv(dtype, {1, 1, 1, 1});
    BackwardArgs a;
    a.params.q = a.params.k = q.view();
    a.params.v = v.view();
    a.params.dtype_policy = DTypePolicy::cast(DType::f16);
    a.out = a.dout = dout.view();
    a.lse = lse.view();
    a.dv = dv.mutable_view();
    run(a);
    EXPECT_EQ(dv.get(0), dtype == DType::bf16 ? 1.0 : 1 + 0x1p-9);
  }
}

TEST(BackwardHand, paged_is_refused) {
  const Tensor q = Tensor::filled(DType::f32, {1, 1, 1, 1}, 1);
  const Tensor table(DType::i32, {1, 1}, {0}), used(DType::i32, {1}, {1});
  const Tensor lse(DType::f32, {1, 1, 1});
  Tensor dq(DType::f32, {1, 1, 1, 1});
  BackwardArgs a;
  a.params.q = a.params.k = a.params.v = q.view();
  a.params.paged = {table.view(), 1};
  a.params.seqused_k = used.view();
  a.out = a.dout = q.view();
  a.lse = lse.view();
  a.dq = dq.mutable_view();
  CallOptions options;
  options.plan.choice.kernel = "cpu.reference.backward";
  EXPECT_EQ(backward(a, options).code(), StatusCode::unsupported);

  // Validation refuses it; the kernels would too.
  for (const Kernel* kernel : {&cpu_reference_backward, &cpu_baseline_backward}) {
    Problem problem;
    problem.compute = DType::f32;
    EXPECT_TRUE(kernel->supports(problem).serves());
    problem.features.add(Feature::paged);
    EXPECT_EQ(render(kernel->supports(problem)), "does not serve paged KV cache");
  }
}

}  // namespace
}  // namespace fovea::oracle
