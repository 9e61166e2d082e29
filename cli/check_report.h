// What `fovea check` has seen, as text and as JSON.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cases/run_case.h"

namespace fovea::cli {

class CheckReport {
 public:
  /// `options`: what a reproducer needs besides kernel, case and seed.
  explicit CheckReport(std::string options) : options_(std::move(options)) {}

  /// `seed`: the one to name in the reproducer; none where the case's own was used.
  void add(const std::string& kernel, const std::string& case_name,
           std::optional<std::uint64_t> seed, const cases::CaseResult& result);
  /// A kernel that this machine cannot run.
  void add_unavailable(const std::string& kernel, const std::string& reason);

  [[nodiscard]] std::int64_t executed() const { return passed_ + failed_; }
  [[nodiscard]] std::int64_t failed() const { return failed_; }
  [[nodiscard]] std::string as_json() const;
  void print() const;

 private:
  struct Counts {
    std::int64_t passed = 0, failed = 0, skipped = 0;
  };
  struct Failure {
    std::string kernel, case_name, reason, reproducer;
  };

  std::string options_;
  std::int64_t passed_ = 0, failed_ = 0, skipped_ = 0;
  std::vector<std::string> kernels_;  ///< in order of first use
  std::map<std::string, Counts> counts_;
  std::map<std::string, std::int64_t> skips_;  ///< by reason
  std::vector<std::pair<std::string, std::string>> unavailable_;
  std::vector<Failure> failures_;
};

}  // namespace fovea::cli
