// Every gradient of the oracle against finite differences of its forward, f64 end to end.
//
// L = sum w out + sum u lse with random w and u; dL/dx by the five-point rule
// (L(x - 2h) - 8 L(x - h) + 8 L(x + h) - L(x + 2h)) / 12h, whose error is O(h^4).
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "core/validate.h"
#include "tests/oracle/random_case.h"

namespace fovea::oracle {
namespace {

using Kind = Input::Kind;

constexpr double kUntouched = 12345.5;
constexpr double kStep = 1e-3;
constexpr double kTolerance = 1e-8;

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::q:
      return "q";
    case Kind::k:
      return "k";
    case Kind::v:
      return "v";
    case Kind::q_weight:
      return "q norm_weight";
    case Kind::k_weight:
      return "k norm_weight";
    case Kind::mask:
      return "mask";
    case Kind::sinks:
      return "sinks";
  }
  return "";
}

/// The loss's weights; NaN in rows that belong to no sequence, which nothing may read.
struct Loss {
  Tensor w, u;
  bool with_lse;
};

Loss draw_loss(const RandomCase& c, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Loss loss{Tensor::filled(DType::f64, c.out_shape(), std::nan("")),
            Tensor::filled(DType::f64, c.lse_shape(), std::nan("")), seed % 3 != 0};
  std::normal_distribution<double> normal;
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; h < c.q_heads; ++h)
      for (std::int64_t i = 0; i < c.q_lens[static_cast<std::size_t>(b)]; ++i) {
        loss.u.put(c.lse_index(b, h, i), normal(random));
        for (std::int64_t d = 0; d < c.v_head_dim; ++d)
          loss.w.put(c.out_index(b, h, i, d), normal(random));
      }
  return loss;
}

double value_of(const RandomCase& c, const Loss& loss) {
  const Outputs result = forward_of(c.params);
  double sum = 0;
  for (std::int64_t n = 0; n < loss.w.size(); ++n)
    if (!std::isnan(loss.w.get(n))) sum += loss.w.get(n) * result.out.get(n);
  for (std::int64_t n = 0; loss.with_lse && n < loss.u.size(); ++n) {
    const bool counts = !std::isnan(loss.u.get(n)) && std::isfinite(result.lse.get(n));
    if (counts) sum += loss.u.get(n) * result.lse.get(n);
  }
  return sum;
}

double difference_quotient(const RandomCase& c, const Loss& loss, Tensor& input, std::int64_t n) {
  const double x = input.get(n);
  const auto at = [&](double step) {
    input.set(n, x + step);
    const double value = value_of(c, loss);
    input.set(n, x);
    return value;
  };
  return (at(-2 * kStep) - 8 * at(-kStep) + 8 * at(kStep) - at(2 * kStep)) / (12 * kStep);
}

/// Rows of packed tensors that belong to a sequence.
std::vector<bool> owned_rows(const std::vector<std::int64_t>& begins,
                             const std::vector<std::int64_t>& capacities, std::int64_t rows) {
  std::vector<bool> owned(static_cast<std::size_t>(rows));
  for (std::size_t b = 0; b < begins.size(); ++b)
    for (std::int64_t i = 0; i < capacities[b]; ++i)
      owned[static_cast<std::size_t>(begins[b] + i)] = true;
  return owned;
}

/// The gradients of a case by the oracle, one tensor for each of its inputs.
std::vector<Tensor> gradients_of(const RandomCase& c, const Loss& loss, Features& features) {
  std::vector<Tensor> gradients;
  for (const Input& input : c.inputs)
    gradients.push_back(Tensor::filled(DType::f64, input.value->shape(), kUntouched));
  const Tensor poison_out = Tensor::filled(DType::f64, c.out_shape(), std::nan(""));
  const Tensor poison_lse = Tensor::filled(DType::f64, c.lse_shape(), std::nan(""));
  BackwardArgs args;
  args.params = c.params;
  args.out = poison_out.view();  // the oracle computes both itself
  args.lse = poison_lse.view();
  args.dout = loss.w.view();
  if (loss.with_lse) args.dlse = loss.u.view();
  for (std::size_t n = 0; n < gradients.size(); ++n) {
    const Input& input = c.inputs[n];
    MutableTensorView view = gradients[n].mutable_view();
    const auto set_segment = [&](MutableOperand& operand, const Operand& like, bool weight) {
      operand.count = like.count;
      auto& segment = operand.segments[input.segment];
      (weight ? segment.norm_weight : segment.tensor) = view;
      if (weight) return;
      // The gradient lies in memory as its input does.
      segment.tensor.shape = like.segments[input.segment].tensor.shape;
      segment.tensor.strides = like.segments[input.segment].tensor.strides;
    };
    switch (input.kind) {
      case Kind::q:
      case Kind::q_weight:
        set_segment(args.dq, c.params.q, input.kind == Kind::q_weight);
        break;
      case Kind::k:
      case Kind::k_weight:
        set_segment(args.dk, c.params.k, input.kind == Kind::k_weight);
        break;
      case Kind::v:
        set_segment(args.dv, c.params.v, false);
        break;
      case Kind::mask:
        args.dmask = view;
        break;
      case Kind::sinks:
        args.dsinks = view;
        break;
    }
  }
  run(args);
  const auto problem = validate(args);
  if (problem.ok()) features = problem->features;
  return gradients;
}

TEST(FiniteDifferences, every_gradient_of_random_cases) {
  constexpr std::uint64_t kCases = 400;
  int used[kFeatureCount] = {};
  std::map<Kind, std::int64_t> elements;
  double worst = 0;
  for (std::uint64_t seed = 0; seed < kCases; ++seed) {
    const RandomCase c(seed + 100000, false);
    SCOPED_TRACE(c.description);
    const Loss loss = draw_loss(c, seed);
    Features features;
    const std::vector<Tensor> gradients = gradients_of(c, loss, features);
    for (int bit = 0; bit < kFeatureCount; ++bit)
      used[bit] += features.has(static_cast<Feature>(1u << bit)) ? 1 : 0;

    for (std::size_t n = 0; n < gradients.size(); ++n) {
      const Input& input = c.inputs[n];
      SCOPED_TRACE(fmt::format("d{} segment {}", name_of(input.kind), input.segment));
      std::vector<bool> owned;
      if (input.kind == Kind::q && c.packed_q)
        owned = owned_rows(c.q_begins, c.q_lens, input.value->shape()[0]);
      if ((input.kind == Kind::k || input.kind == Kind::v) && c.packed_k)
        owned = owned_rows(c.k_begins, c.kv_capacities, input.value->shape()[0]);
      const std::int64_t row_size =
          owned.empty() ? 1 : input.value->shape()[1] * input.value->shape()[2];
      double error = 0, norm = 0;
      for (std::int64_t e = 0; e < input.value->size(); ++e) {
        const double gradient = gradients[n].get(e);
        if (!owned.empty() && !owned[static_cast<std::size_t>(e / row_size)]) {
          ASSERT_EQ(gradient, kUntouched) << "element " << e << " belongs to no sequence";
          continue;
        }
        // Nothing moves -inf, which hides (mask) or is absent (sink).
        const double quotient =
            std::isfinite(input.value->get(e)) ? difference_quotient(c, loss, *input.value, e) : 0;
        error += (gradient - quotient) * (gradient - quotient);
        norm += quotient * quotient;
        ++elements[input.kind];
      }
      error = std::sqrt(error) / (std::sqrt(norm) + 1e-2);
      ASSERT_LE(error, kTolerance);
      worst = std::max(worst, error);
    }
  }
  RecordProperty("worst_relative_error", fmt::format("{:.3g}", worst));
  for (const auto& [kind, count] : elements) {
    RecordProperty(name_of(kind), static_cast<int>(count));
    EXPECT_GE(count, 300) << name_of(kind);
  }
  const Features covered =
      Feature::gqa | Feature::band | Feature::bool_mask | Feature::additive_mask | Feature::alibi |
      Feature::softcap | Feature::sinks | Feature::dropout | Feature::varlen | Feature::seqused_k |
      Feature::segments | Feature::qk_norm | Feature::rope | Feature::dlse | Feature::dmask |
      Feature::dsinks | Feature::dnorm_weight;
  for (int bit = 0; bit < kFeatureCount; ++bit) {
    const auto feature = static_cast<Feature>(1u << bit);
    EXPECT_GE(used[bit], covered.has(feature) ? 40 : 0) << fovea::name_of(feature);
  }
}

}  // namespace
}  // namespace fovea::oracle
