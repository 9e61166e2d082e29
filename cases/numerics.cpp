#include "cases/numerics.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace fovea::cases {
namespace {

double slack_of(DType compute) {
  return compute == DType::f16 || compute == DType::bf16 ? 1e-5 : 1e-6;
}

std::string text_of(const Index& index, int rank) {
  std::string text;
  for (int d = 0; d < rank; ++d) {
    text += fmt::format("{}{}", d == 0 ? "" : ",", index[static_cast<std::size_t>(d)]);
  }
  return text;
}

/// Which elements of a result are exactly 0 because their row sees, or is seen by, nothing.
class DeadRows {
 public:
  DeadRows(const Inputs& inputs, const Outputs& results, const std::string& name, const Tensor& lse)
      : inputs_(inputs), lse_(lse), packed_(inputs.c.varlen != IndexKind::none) {
    query_side_ =
        name.starts_with("out") || (name.starts_with("dq") && !name.starts_with("dq weight"));
    key_side_ = !query_side_ && (name.starts_with("dk") || name.starts_with("dv")) &&
                !name.starts_with("dk weight");
    if (key_side_) {
      for (std::int64_t b = 0; b < inputs.c.batch; ++b) {
        seen_.push_back(keys_of_sequence(inputs.c, inputs.lengths, b));
      }
    }
    const std::size_t bracket = name.find('[');
    if (bracket == std::string::npos || (!query_side_ && !key_side_)) return;
    for (const Output& segment : results.list) {
      if (segment.name == name) break;
      if (segment.name.starts_with(name.substr(0, bracket + 1))) {
        first_row_ += segment.written.shape[2];
      }
    }
  }

  [[nodiscard]] bool contains(const Index& index) const {
    if (query_side_) {
      const Index at =
          packed_ ? Index{index[1], index[0]} : Index{index[0], index[1], index[2] + first_row_};
      return lse_.get(at) == -HUGE_VAL;
    }
    if (!key_side_) return false;
    std::int64_t b = index[0], j = index[2] + first_row_;
    if (packed_) {
      const auto& begins = inputs_.lengths.k_begin;
      b = std::upper_bound(begins.begin(), begins.end(), index[0]) - begins.begin() - 1;
      j = index[0] - begins[static_cast<std::size_t>(b)];
    }
    const KeyRange& range = seen_[static_cast<std::size_t>(b)];
    return j < range.begin || j >= range.end;
  }

 private:
  const Inputs& inputs_;
  const Tensor& lse_;
  bool packed_;
  bool query_side_ = false, key_side_ = false;
  std::int64_t first_row_ = 0;
  std::vector<KeyRange> seen_;
};

/// Largest L2 norm of a row; rows of poison do not count.
double largest_row(const std::vector<Tensor>& segments, bool normalised) {
  double largest = 0;
  for (const Tensor& segment : segments) {
    const auto dim = segment.view.shape[static_cast<std::size_t>(segment.view.rank - 1)];
    double sum = 0;
    std::int64_t column = 0;
    for_each_element(segment.view, [&](std::int64_t offset, const Index&) {
      const double x = load(segment.view.data, segment.view.dtype, offset);
      sum += x * x;
      if (++column == dim) {
        if (std::isfinite(sum)) largest = std::max(largest, sum);
        sum = 0;
        column = 0;
      }
    });
    // Normalised rows have norm sqrt(dim), and weights stay below 3.
    if (normalised) largest = std::max(largest, 9.0 * static_cast<double>(dim));
  }
  return std::sqrt(largest);
}

/// Squared L2 norms of the rows of out or dout.
std::vector<double> row_norms(const std::vector<TensorView>& segments) {
  std::vector<double> norms;
  for (const TensorView& segment : segments) {
    const std::int64_t dim = segment.shape[static_cast<std::size_t>(segment.rank - 1)];
    std::int64_t column = 0;
    for_each_element(segment, [&](std::int64_t offset, const Index&) {
      const double x = load(segment.data, segment.dtype, offset);
      if (column == 0) norms.push_back(0);
      norms.back() += x * x;
      column = (column + 1) % dim;
    });
  }
  return norms;
}

/// Squared size of what backward subtracts from each other on the way to a gradient.
double cancelled(const Inputs& inputs, const std::string& name, const Outputs& oracle_forward) {
  if (name.starts_with("out") || name == "lse" || name.starts_with("dv")) return 0;
  const Case& c = inputs.c;
  std::vector<TensorView> out, dout;
  for (const Output& output : oracle_forward.list) {
    if (output.name != "lse") out.emplace_back(output.written);
  }
  for (std::size_t n = 0; n < inputs.dout.size(); ++n) {
    dout.emplace_back(inputs.dout[n].view);
    dout.back().shape = out[n].shape;
  }
  if (dout.empty()) return 0;
  const std::vector<double> out_norms = row_norms(out), dout_norms = row_norms(dout);
  const double largest_v = largest_row(inputs.operands.v, false);
  double sum = 0;
  for (std::size_t n = 0; n < out_norms.size(); ++n) {
    const double sharpness =
        name == "dsinks" ? 1 : std::min(1.0, out_norms[n] / (largest_v * largest_v));
    const double size = dout_norms[n] * out_norms[n] * sharpness;
    if (std::isfinite(size)) sum += size;
  }
  if (name == "dmask" || name == "dsinks") return sum;
  const double scale = c.scale.value_or(1 / std::sqrt(static_cast<double>(c.head_dim)));
  const double other = largest_row(name.starts_with("dq") ? inputs.operands.k : inputs.operands.q,
                                   c.qk_norm != NormKind::none);
  return sum * scale * scale * other * other;
}

}  // namespace

double unit_of_lse(const Inputs& inputs, const Tensor& lse) {
  if (inputs.c.compute() == DType::f64) return 0;
  double largest = 0;
  for (const double value : values_of(lse.view)) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return std::ldexp(largest, -23);
}

void ErrorSums::add(const ErrorSums& other) {
  squared_error += other.squared_error;
  baseline_squared_error += other.baseline_squared_error;
  squared_norm += other.squared_norm;
  largest_error = std::max(largest_error, other.largest_error);
  baseline_largest_error = std::max(baseline_largest_error, other.baseline_largest_error);
  cancelled += other.cancelled;
  lse_rounding = std::max(lse_rounding, other.lse_rounding);
  if (violation.empty()) violation = other.violation;
}

Comparison ErrorSums::compare(DType compute) const {
  const double slack = slack_of(compute);
  Comparison result;
  result.tensor = tensor;
  result.violation = violation;
  if (absolute) {
    result.error = largest_error;
    result.baseline_error = baseline_largest_error;
    result.limit = 2 * result.baseline_error + slack + lse_rounding;
    return result;
  }
  const double allowance = compute == DType::f64 ? 0 : std::ldexp(std::sqrt(cancelled), -23);
  // A norm that only consists of what cancels is measured against that.
  const double norm = std::sqrt(squared_norm == 0 ? cancelled : squared_norm);
  if (norm == 0) {
    if (squared_error != 0 && violation.empty()) result.violation = "must be exactly 0";
    return result;
  }
  result.error = std::sqrt(squared_error) / norm;
  result.baseline_error = std::sqrt(baseline_squared_error) / norm;
  result.limit = 2 * result.baseline_error + allowance / norm;
  if (squared_norm != 0) result.limit += slack + lse_rounding;
  return result;
}

std::vector<ErrorSums> measure(const Inputs& inputs, const Outputs& results, const Outputs& oracle,
                               const Outputs& baseline, const Outputs& oracle_forward) {
  const Tensor& oracle_lse = oracle_forward.find("lse")->tensor;
  const double lse_unit = unit_of_lse(inputs, oracle_lse);
  std::vector<ErrorSums> all;
  for (const Output& result : results.list) {
    ErrorSums sums;
    sums.tensor = result.name;
    sums.absolute = result.name == "lse";
    sums.cancelled = cancelled(inputs, result.name, oracle_forward);
    if (!result.name.starts_with("out")) sums.lse_rounding = lse_unit;
    const Tensor& right = oracle.find(result.name)->tensor;
    const Tensor& yardstick = baseline.find(result.name)->tensor;
    const DeadRows dead(inputs, results, result.name, oracle_lse);
    const auto violate = [&](const Index& at, const char* rule, double got, double expected) {
      if (!sums.violation.empty()) return;
      sums.violation = fmt::format("element [{}] is {}, the oracle says {} ({})",
                                   text_of(at, result.written.rank), got, expected, rule);
    };
    for_each_element(result.written, [&](std::int64_t offset, const Index& at) {
      const double got = load(result.written.data, result.written.dtype, offset);
      const double expected = right.get(at);
      if (!std::isfinite(expected)) {
        if (sums.absolute && expected == -HUGE_VAL && got != expected) {
          violate(at, "a row that sees nothing", got, expected);
        } else if (std::isfinite(got)) {
          violate(at, "non-finite values must show", got, expected);
        }
        return;
      }
      if (!std::isfinite(got)) {
        violate(at, "must be finite", got, expected);
        return;
      }
      if (expected == 0 && got != 0 && dead.contains(at)) {
        violate(at, "nothing is seen there", got, expected);
      }
      const double error = got - expected;
      double baseline_error = yardstick.get(at) - expected;
      if (!std::isfinite(baseline_error)) baseline_error = 0;
      sums.squared_norm += expected * expected;
      sums.squared_error += error * error;
      sums.baseline_squared_error += baseline_error * baseline_error;
      sums.largest_error = std::max(sums.largest_error, std::abs(error));
      sums.baseline_largest_error = std::max(sums.baseline_largest_error, std::abs(baseline_error));
    });
    all.push_back(std::move(sums));
  }
  return all;
}

}  // namespace fovea::cases
