// Calls that are long, wide or many, checked on some of their rows by an evaluation in f64.
#include <iostream>

#include "cases/run_case.h"
#include "gpu.h"

namespace fovea::gpu {
namespace {

class Large : public OnGpu {};

/// Not a multiple of any row, so that rows and heads differ.
constexpr std::size_t kPattern = 1'000'003;

void fill_random(DenseCall& call) {
  std::uint64_t seed = 1;
  for (Tensor* x : {&call.q, &call.k, &call.v, &call.dout})
    x->fill(random_values(kPattern, seed++));
}

/// One head of a tensor [1, heads, rows, width].
struct Head {
  Head(const Tensor& from, std::int64_t head, std::int64_t rows, std::int64_t row_width)
      : values(from.download(static_cast<std::size_t>(head * rows * row_width),
                             static_cast<std::size_t>(rows * row_width))),
        width(row_width) {}
  [[nodiscard]] const float* row(std::int64_t n) const {
    return &values[static_cast<std::size_t>(n * width)];
  }
  std::vector<float> values;
  std::int64_t width;
};

double dot(const float* a, const float* b, std::int64_t width) {
  double sum = 0;
  for (std::int64_t d = 0; d < width; ++d)
    sum += static_cast<double>(a[d]) * static_cast<double>(b[d]);
  return sum;
}
void add(std::vector<double>& to, double factor, const float* row) {
  for (std::size_t d = 0; d < to.size(); ++d) to[d] += factor * static_cast<double>(row[d]);
}
double relative_error(const float* found, const std::vector<double>& wanted) {
  double error = 0, norm = 0;
  for (std::size_t d = 0; d < wanted.size(); ++d) {
    const double e = static_cast<double>(found[d]) - wanted[d];
    error += e * e;
    norm += wanted[d] * wanted[d];
  }
  return std::sqrt(error / norm);
}

/// Weights of the first `keys` keys in row i, and the row's lse.
struct Row {
  Row(const Head& q, const Head& k, std::int64_t i, std::int64_t keys)
      : weights(static_cast<std::size_t>(keys)) {
    const double scale = 1 / std::sqrt(static_cast<double>(q.width));
    for (std::int64_t j = 0; j < keys; ++j)
      weights[static_cast<std::size_t>(j)] = scale * dot(q.row(i), k.row(j), q.width);
    const double most = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& w : weights) sum += w = std::exp(w - most);
    for (double& w : weights) w /= sum;
    lse = most + std::log(sum);
  }
  std::vector<double> weights;
  double lse;
};

TEST_F(Large, sequence_of_131072_keys) {
  constexpr std::int64_t kHeads = 2, kLength = 131072, kDim = 64;
  DenseCall call(kGpu, DType::bf16, 1, kHeads, kLength, kLength, kDim);
  fill_random(call);
  call.params.band = Band::causal(Anchor::top_left);
  throw_if_error(forward(call.forward_args()));
  throw_if_error(synchronize(kGpu));
  for (std::int64_t head = 0; head < kHeads; ++head) {
    const Head q(call.q, head, kLength, kDim), k(call.k, head, kLength, kDim);
    const Head v(call.v, head, kLength, kDim), out(call.out, head, kLength, kDim);
    const Head lse(call.lse, head, kLength, 1);
    for (const std::int64_t i : {0, 63, 64, 1000, 65535, 65536, 100001, 131071}) {
      const Row row(q, k, i, i + 1);
      std::vector<double> wanted(kDim);
      for (std::int64_t j = 0; j <= i; ++j)
        add(wanted, row.weights[static_cast<std::size_t>(j)], v.row(j));
      EXPECT_LT(relative_error(out.row(i), wanted), 8e-3) << "head " << head << ", row " << i;
      EXPECT_NEAR(static_cast<double>(*lse.row(i)), row.lse, 1e-3)
          << "head " << head << ", row " << i;
    }
  }
}

TEST_F(Large, heads_beyond_65535) {
  for (const char* name :
       {"b7000_hq10_hkv10_q3_k5_d8_f32", "b35000_hq2_hkv1_q2_k3_d16_bf16_causal_br"}) {
    cases::PreparedCase prepared(cases::parse_case(name).value(), 1);
    int executed = 0;
    for (const KernelInfo& kernel : kernels()) {
      if (kernel.backend != "cuda" || !kernel.available) continue;
      const cases::CaseResult result = cases::run_case(prepared, kernel.id);
      EXPECT_NE(result.outcome, cases::Outcome::failed)
          << kernel.id << " " << name << ": " << result.reason;
      executed += result.outcome == cases::Outcome::passed;
    }
    EXPECT_GE(executed, 3) << name;
  }
}

std::size_t workspace_of(const auto& args) { return Plan::make(args).value().workspace_bytes(); }

/// The first half of the rows of every operand.
DenseCall half_of(std::int64_t heads, std::int64_t length, std::int64_t dim) {
  return {kGpu, DType::f32, 1, heads, length / 2, length / 2, dim};
}

TEST_F(Large, f32_of_24_heads_of_24576_rows) {
  constexpr std::int64_t kHeads = 24, kLength = 24576, kDim = 128;
  std::size_t half_forward = 0, half_backward = 0;
  {
    const DenseCall half = half_of(kHeads, kLength, kDim);
    half_forward = workspace_of(half.forward_args());
    half_backward = workspace_of(half.backward_args());
  }
  DenseCall call(kGpu, DType::f32, 1, kHeads, kLength, kLength, kDim);
  const std::size_t forward_bytes = workspace_of(call.forward_args());
  const std::size_t backward_bytes = workspace_of(call.backward_args());
  std::cout << "workspace at " << kLength << " rows: forward " << forward_bytes
            << " bytes, backward " << backward_bytes << "; at half as many " << half_forward
            << " and " << half_backward << "; q has " << call.q.bytes() << "\n";
  constexpr std::size_t kPage = 4096;
  EXPECT_LE(forward_bytes, 2 * half_forward + kPage);
  EXPECT_LE(backward_bytes, 2 * half_backward + kPage);
  EXPECT_LE(backward_bytes, 2 * call.q.bytes());

  fill_random(call);
  throw_if_error(forward(call.forward_args()));
  throw_if_error(backward(call.backward_args()));
  throw_if_error(synchronize(kGpu));
  constexpr std::int64_t kHead = 17;
  const auto head = [&](const Tensor& x) { return Head(x, kHead, kLength, kDim); };
  const Head q = head(call.q), k = head(call.k), v = head(call.v), dout = head(call.dout);
  const Head out = head(call.out), dq = head(call.dq), dk = head(call.dk), dv = head(call.dv);
  const Head lse(call.lse, kHead, kLength, 1);
  const double scale = 1 / std::sqrt(static_cast<double>(kDim));
  for (const std::int64_t i : {0, 4095, 12345, 24575}) {
    const Row row(q, k, i, kLength);
    std::vector<double> wanted(kDim), gradient(kDim);
    for (std::int64_t j = 0; j < kLength; ++j)
      add(wanted, row.weights[static_cast<std::size_t>(j)], v.row(j));
    double delta = 0;
    for (std::int64_t d = 0; d < kDim; ++d)
      delta += static_cast<double>(dout.row(i)[d]) * wanted[static_cast<std::size_t>(d)];
    for (std::int64_t j = 0; j < kLength; ++j) {
      const double grown = dot(dout.row(i), v.row(j), kDim) - delta;
      add(gradient, scale * row.weights[static_cast<std::size_t>(j)] * grown, k.row(j));
    }
    EXPECT_LT(relative_error(out.row(i), wanted), 2e-5) << "row " << i;
    EXPECT_NEAR(static_cast<double>(*lse.row(i)), row.lse, 1e-4) << "row " << i;
    EXPECT_LT(relative_error(dq.row(i), gradient), 1e-4) << "row " << i;
  }
  // Gradients of a key sum over all rows; lse and delta are those of the run.
  for (const std::int64_t j : {0, 7777, 24575}) {
    std::vector<double> wanted_dk(kDim), wanted_dv(kDim);
    for (std::int64_t i = 0; i < kLength; ++i) {
      const double p =
          std::exp(scale * dot(q.row(i), k.row(j), kDim) - static_cast<double>(*lse.row(i)));
      const double delta = dot(dout.row(i), out.row(i), kDim);
      add(wanted_dv, p, dout.row(i));
      add(wanted_dk, scale * p * (dot(dout.row(i), v.row(j), kDim) - delta), q.row(i));
    }
    EXPECT_LT(relative_error(dk.row(j), wanted_dk), 1e-4) << "key " << j;
    EXPECT_LT(relative_error(dv.row(j), wanted_dv), 1e-4) << "key " << j;
  }
}

}  // namespace
}  // namespace fovea::gpu
