// Timing of kernels on a case.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <fovea/plan.h>

#include "cases/device_copies.h"
#include "cases/run_case.h"

namespace fovea::cli {

/// What order statistics say about one quantity.
struct Spread {
  double median = 0, lower_quartile = 0, upper_quartile = 0, least = 0, most = 0;
};
Spread spread_of(std::vector<double> values);

/// One kernel ready to run on a case's inputs.
class Contestant {
 public:
  /// `kernel` empty: the library's choice on the CPU. A kernel of a device gets copies of the case.
  static Result<Contestant> make(cases::PreparedCase& prepared, cases::Direction direction,
                                 const std::string& kernel, int threads);
  /// The report of the library's choice on a device: by priority, or measured.
  static Result<Report> choose(cases::PreparedCase& prepared, cases::Direction direction,
                               const Device& device, int threads, bool autotune);

  [[nodiscard]] const std::string& kernel() const { return plan_->report().kernel; }
  [[nodiscard]] std::size_t workspace_bytes() const { return plan_->workspace_bytes(); }
  [[nodiscard]] const Device& device() const { return plan_->report().device; }
  /// Runs for about `seconds` and at least once; returns the seconds of one run by the host's
  /// clock. On a device many runs are queued before they are waited for.
  Result<double> time(double seconds) const;

 private:
  Contestant() = default;
  [[nodiscard]] Status run_once() const;

  cases::Outputs outputs_;
  ForwardArgs forward_;
  BackwardArgs backward_;
  cases::Direction direction_ = cases::Direction::forward;
  std::shared_ptr<const cases::Buffer> workspace_;
  std::shared_ptr<cases::DeviceCopies> copies_;  ///< of a device's kernel
  std::optional<Plan> plan_;
};

}  // namespace fovea::cli
