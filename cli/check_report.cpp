#include "cli/check_report.h"

#include <algorithm>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

namespace fovea::cli {

void CheckReport::add(const std::string& kernel, const std::string& case_name,
                      std::optional<std::uint64_t> seed, const cases::CaseResult& result) {
  if (!counts_.contains(kernel)) kernels_.push_back(kernel);
  Counts& counts = counts_[kernel];
  switch (result.outcome) {
    case cases::Outcome::passed:
      ++counts.passed;
      ++passed_;
      break;
    case cases::Outcome::refused:
      ++counts.skipped;
      ++skipped_;
      ++skips_[result.reason];
      break;
    case cases::Outcome::failed: {
      ++counts.failed;
      ++failed_;
      const std::string with_seed = seed ? fmt::format(" --seed {}", *seed) : "";
      failures_.push_back(
          {kernel, case_name, result.reason,
           fmt::format("fovea check{} --kernel {} {}{}", options_, kernel, case_name, with_seed)});
      break;
    }
  }
}

void CheckReport::add_unavailable(const std::string& kernel, const std::string& reason) {
  unavailable_.emplace_back(kernel, reason);
}

std::string CheckReport::as_json() const {
  nlohmann::ordered_json report;
  report["passed"] = passed_;
  report["failed"] = failed_;
  report["skipped"] = skipped_;
  report["kernels"] = nlohmann::ordered_json::object();
  for (const std::string& kernel : kernels_) {
    const Counts& counts = counts_.at(kernel);
    report["kernels"][kernel] = {
        {"passed", counts.passed}, {"failed", counts.failed}, {"skipped", counts.skipped}};
  }
  report["unavailable"] = nlohmann::ordered_json::object();
  for (const auto& [kernel, reason] : unavailable_) report["unavailable"][kernel] = reason;
  report["skips"] = skips_;
  report["failures"] = nlohmann::ordered_json::array();
  for (const Failure& failure : failures_) {
    report["failures"].push_back({{"kernel", failure.kernel},
                                  {"case", failure.case_name},
                                  {"reason", failure.reason},
                                  {"reproduce", failure.reproducer}});
  }
  return report.dump(2);
}

void CheckReport::print() const {
  constexpr std::size_t kMostReasons = 20;
  for (const Failure& failure : failures_) {
    fmt::print("FAILED {} {}\n  {}\n  reproduce: {}\n", failure.kernel, failure.case_name,
               failure.reason, failure.reproducer);
  }
  std::vector<std::pair<std::int64_t, std::string>> skips;
  for (const auto& [reason, count] : skips_) skips.emplace_back(count, reason);
  std::stable_sort(skips.begin(), skips.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  if (!skips.empty()) fmt::print("skipped, by reason\n");
  for (std::size_t n = 0; n < std::min(skips.size(), kMostReasons); ++n) {
    fmt::print("  {:>6}  {}\n", skips[n].first, skips[n].second);
  }
  if (skips.size() > kMostReasons) {
    fmt::print("          and {} further reasons (--json lists all)\n",
               skips.size() - kMostReasons);
  }
  for (const auto& [kernel, reason] : unavailable_) {
    fmt::print("not available: {} ({})\n", kernel, reason);
  }
  fmt::print("{:<26} {:>8} {:>8} {:>8}\n", "kernel", "passed", "failed", "skipped");
  for (const std::string& kernel : kernels_) {
    const Counts& counts = counts_.at(kernel);
    fmt::print("{:<26} {:>8} {:>8} {:>8}\n", kernel, counts.passed, counts.failed, counts.skipped);
  }
  fmt::print("{} passed, {} failed, {} skipped\n", passed_, failed_, skipped_);
}

}  // namespace fovea::cli
