// The yardstick: cpu.baseline errs like an unfused evaluation in its dtype, neither less nor more.
#include <cmath>

#include "tests/oracle/tensors.h"

namespace fovea::oracle {
namespace {

double relative_error(const Tensor& got, const Tensor& want) {
  double error = 0, norm = 0;
  for (std::int64_t n = 0; n < want.size(); ++n) {
    error += std::pow(got.get(n) - want.get(n), 2);
    norm += std::pow(want.get(n), 2);
  }
  return std::sqrt(error / norm);
}

struct Call {
  Tensor q, k, v, dout;
  AttentionParams params;

  Call(DType dtype, std::int64_t rows, std::int64_t keys, std::int64_t dim) {
    std::mt19937_64 random(9);
    q = Tensor::normal(dtype, {2, 4, rows, dim}, random);
    k = Tensor::normal(dtype, {2, 2, keys, dim}, random);
    v = Tensor::normal(dtype, {2, 2, keys, dim}, random);
    dout = Tensor::normal(dtype, {2, 4, rows, dim}, random);
    params.q = q.view();
    params.k = k.view();
    params.v = v.view();
    params.band = Band::causal(Anchor::bottom_right);
  }
  /// out, dq, dk, dv in f32.
  [[nodiscard]] std::vector<Tensor> results(const std::string& family) const {
    std::vector<Tensor> r;
    for (const Tensor* like : {&q, &q, &k, &v}) r.emplace_back(DType::f32, like->shape());
    Tensor lse(DType::f32, {q.shape()[0], q.shape()[1], q.shape()[2]});
    run(ForwardArgs{params, r[0].mutable_view(), lse.mutable_view()}, "cpu." + family + ".forward");
    BackwardArgs a;
    a.params = params;
    a.out = r[0].view();
    a.dout = dout.view();
    a.lse = lse.view();
    a.dq = r[1].mutable_view();
    a.dk = r[2].mutable_view();
    a.dv = r[3].mutable_view();
    run(a, "cpu." + family + ".backward");
    return r;
  }
};

TEST(Baseline, error_is_that_of_its_dtype) {
  // Unit roundoff u = 2^-p. Rounding S and P costs a few u; far from 0 and far from 30 u.
  struct Case {
    DType dtype;
    double unit;
  };
  for (const Case& c :
       {Case{DType::f32, 0x1p-24}, Case{DType::f16, 0x1p-11}, Case{DType::bf16, 0x1p-8}}) {
    const Call call(c.dtype, 60, 70, 64);
    const auto got = call.results("baseline"), want = call.results("reference");
    for (std::size_t n = 0; n < got.size(); ++n) {
      const double error = relative_error(got[n], want[n]);
      EXPECT_GT(error, 0.1 * c.unit) << fovea::name_of(c.dtype) << " result " << n;
      EXPECT_LT(error, 8 * c.unit) << fovea::name_of(c.dtype) << " result " << n;
    }
  }
}

TEST(Baseline, tf32_rounds_the_operands) {
  Call call(DType::f32, 60, 70, 64);
  const auto want = call.results("reference");
  call.params.f32_precision = F32Precision::tf32;
  const auto got = call.results("baseline"), exact = call.results("reference");
  for (std::size_t n = 0; n < got.size(); ++n) {
    const double error = relative_error(got[n], want[n]);
    EXPECT_GT(error, 0.1 * 0x1p-11);
    EXPECT_LT(error, 8 * 0x1p-11);
    EXPECT_EQ(max_difference(exact[n], want[n]), 0);  // the oracle stays exact
  }
}

TEST(Baseline, s_and_p_are_rounded_between_the_products) {
  // bf16 has 8 significant bits. q k = 1 + 2^-6 + 2^-8 is exact in f32; as bf16 it is 1 + 2^-6 +
  // 2^-7 or 1 + 2^-6 by the tie to even, which the LSE of a single key shows.
  const Tensor q(DType::bf16, {1, 1, 1, 2}, {1, 0x1p-8}),
      k(DType::bf16, {1, 1, 1, 2}, {1.015625, 1});
  AttentionParams p;
  p.q = q.view();
  p.k = p.v = k.view();
  p.scale = 1.0;
  EXPECT_EQ(forward_of(p, "cpu.baseline.forward").lse.get(0), 1.015625);
  EXPECT_EQ(forward_of(p).lse.get(0), 1.01953125);
  // Three equal keys: P = 1/3 becomes 0x1.56p-2 = 0.333984375, and out three times that.
  const Tensor q1(DType::bf16, {1, 1, 1, 1}, {0}), k3(DType::bf16, {1, 1, 3, 1}, {1, 1, 1});
  p.q = q1.view();
  p.k = p.v = k3.view();
  Tensor out(DType::f32, {1, 1, 1, 1});
  run(ForwardArgs{p, out.mutable_view(), {}}, "cpu.baseline.forward");
  EXPECT_EQ(out.get(0), 3 * 0.333984375);
}

TEST(Baseline, refuses_f64) {
  const Tensor q = Tensor::filled(DType::f64, {1, 1, 1, 1}, 0);
  Tensor out(DType::f64, {1, 1, 1, 1});
  AttentionParams p;
  p.q = p.k = p.v = q.view();
  CallOptions options;
  options.plan.choice.kernel = "cpu.baseline.forward";
  const Status status = forward(ForwardArgs{p, out.mutable_view(), {}}, options);
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("f64"), std::string::npos) << status.message();
}

TEST(Baseline, quantised_evaluation_is_refused) {
  const Tensor q = Tensor::filled(DType::f32, {1, 1, 1, 1}, 0);
  Tensor out(DType::f32, {1, 1, 1, 1});
  AttentionParams p;
  p.q = p.k = p.v = q.view();
  p.quantization.dtype = QuantizedDType::int8;
  for (const char* kernel : {"cpu.baseline.forward", "cpu.reference.forward"}) {
    CallOptions options;
    options.plan.choice.kernel = kernel;
    EXPECT_EQ(forward(ForwardArgs{p, out.mutable_view(), {}}, options).code(),
              StatusCode::unsupported);
  }
}

}  // namespace
}  // namespace fovea::oracle
