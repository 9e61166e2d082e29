// The numerics rule: how far a result may be from the f64 oracle's.
//
//   error(x) = ||x - oracle|| / ||oracle||   for out and each gradient (L2 over the tensor)
//   error(x) = max |x - oracle|              for LSE
//   passes when error(kernel) <= 2 * error(baseline) + 1e-6, or + 1e-5 for 16-bit compute dtypes;
//   the baseline is an unfused evaluation in the same dtype.
//
// Where the oracle is 0 the result must be 0.
#pragma once

#include <string>
#include <vector>

#include "cases/outputs.h"

namespace fovea::cases {

/// How one tensor compares with the oracle's.
struct Comparison {
  std::string tensor;
  double error = 0, baseline_error = 0, limit = 0;
  std::string violation;  ///< an exact rule that is broken, in words

  [[nodiscard]] bool ok() const { return violation.empty() && error <= limit; }
};

/// Where an element stands in its tensor.
struct Place {
  Index index;
  int rank;
};

/// Sums over one or several draws of the inputs.
struct ErrorSums {
  std::string tensor;
  bool absolute = false;  ///< LSE: the largest difference counts
  double squared_error = 0, baseline_squared_error = 0, squared_norm = 0;
  double largest_error = 0, baseline_largest_error = 0;
  std::string violation;

  void add(const ErrorSums& other);
  /// Adds one element, or notes the exact rule that it breaks.
  void add(const Place& at, double got, double expected, double yardstick);
  /// Notes a broken rule; the first one is kept.
  void violate(const Place& at, const char* rule, double got, double expected);
  [[nodiscard]] Comparison compare(DType compute) const;
};

/// Compares all results of one run with the oracle's and the baseline's.
std::vector<ErrorSums> measure(const Inputs& inputs, const Outputs& results, const Outputs& oracle,
                               const Outputs& baseline, const Outputs& oracle_forward);

}  // namespace fovea::cases
