#include "cases/numerics.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace fovea::cases {
namespace {

double slack_of(DType compute) {
  return compute == DType::f16 || compute == DType::bf16 ? 1e-5 : 1e-6;
}

std::string text_of(const Place& at) {
  std::string text;
  for (int d = 0; d < at.rank; ++d) {
    text += fmt::format("{}{}", d == 0 ? "" : ",", at.index[static_cast<std::size_t>(d)]);
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

}  // namespace

void ErrorSums::add(const ErrorSums& other) {
  squared_error += other.squared_error;
  baseline_squared_error += other.baseline_squared_error;
  squared_norm += other.squared_norm;
  largest_error = std::max(largest_error, other.largest_error);
  baseline_largest_error = std::max(baseline_largest_error, other.baseline_largest_error);
  if (violation.empty()) violation = other.violation;
}

void ErrorSums::add(const Place& at, double got, double expected, double yardstick) {
  if (!std::isfinite(expected)) {
    if (absolute && expected == -HUGE_VAL && got != expected) {
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
  const double error = got - expected;
  double baseline_error = yardstick - expected;
  if (!std::isfinite(baseline_error)) baseline_error = 0;
  squared_norm += expected * expected;
  squared_error += error * error;
  baseline_squared_error += baseline_error * baseline_error;
  largest_error = std::max(largest_error, std::abs(error));
  baseline_largest_error = std::max(baseline_largest_error, std::abs(baseline_error));
}

void ErrorSums::violate(const Place& at, const char* rule, double got, double expected) {
  if (!violation.empty()) return;
  violation =
      fmt::format("element [{}] is {}, the oracle says {} ({})", text_of(at), got, expected, rule);
}

Comparison ErrorSums::compare(DType compute) const {
  const double slack = slack_of(compute);
  Comparison result;
  result.tensor = tensor;
  result.violation = violation;
  if (absolute) {
    result.error = largest_error;
    result.baseline_error = baseline_largest_error;
    result.limit = 2 * result.baseline_error + slack;
    return result;
  }
  const double norm = std::sqrt(squared_norm);
  if (norm == 0) {
    if (squared_error != 0 && violation.empty()) result.violation = "must be exactly 0";
    return result;
  }
  result.error = std::sqrt(squared_error) / norm;
  result.baseline_error = std::sqrt(baseline_squared_error) / norm;
  result.limit = 2 * result.baseline_error + slack;
  return result;
}

std::vector<ErrorSums> measure(const Inputs& inputs, const Outputs& results, const Outputs& oracle,
                               const Outputs& baseline, const Outputs& oracle_forward) {
  const Tensor& oracle_lse = oracle_forward.find("lse")->tensor;
  std::vector<ErrorSums> all;
  for (const Output& result : results.list) {
    ErrorSums sums;
    sums.tensor = result.name;
    sums.absolute = result.name == "lse";
    const Tensor& right = oracle.find(result.name)->tensor;
    const Tensor& yardstick = baseline.find(result.name)->tensor;
    const DeadRows dead(inputs, results, result.name, oracle_lse);
    const RowShape row = row_shape(result.written);
    const std::int64_t right_stride = row_shape(right.view).stride;
    const std::int64_t yardstick_stride = row_shape(yardstick.view).stride;
    Place at{{}, result.written.rank};
    const auto last = static_cast<std::size_t>(std::max(at.rank - 1, 0));
    for_each_row(result.written, [&](const Index& first) {
      const std::int64_t offset = offset_of(result.written, first);
      const std::int64_t right_offset = offset_of(right.view, first);
      const std::int64_t yardstick_offset = offset_of(yardstick.view, first);
      at.index = first;
      for (std::int64_t n = 0; n < row.size; ++n) {
        at.index[last] = n;
        const double got = load(result.written.data, result.written.dtype, offset + n * row.stride);
        const double expected =
            load(right.view.data, right.view.dtype, right_offset + n * right_stride);
        sums.add(at, got, expected,
                 load(yardstick.view.data, yardstick.view.dtype,
                      yardstick_offset + n * yardstick_stride));
        if (expected == 0 && got != 0 && dead.contains(at.index)) {
          sums.violate(at, "nothing is seen there", got, expected);
        }
      }
    });
    all.push_back(std::move(sums));
  }
  return all;
}

}  // namespace fovea::cases
