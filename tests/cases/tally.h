// What kernels did with cases: failures fail the test, refusals are counted by reason.
#pragma once

#include <iostream>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <fovea/introspect.h>

#include "cases/random_case.h"
#include "cases/run_case.h"

namespace fovea::cases {

/// The case as a kernel can serve it: in bf16 where it serves no f32.
inline Case suited_to(const std::string& kernel, const Case& c) {
  static const Case plain = parse_case("b1_hq2_hkv2_q5_k7_d8_f32").value();
  if (c.compute() != DType::f32 || would_serve(kernel, plain)) return c;
  return with_dtype(c, DType::bf16).value_or(c);
}

/// Threads may share it.
class Tally {
 public:
  /// `options`: what a reproducer needs besides kernel and case.
  explicit Tally(std::string options = "") : options_(std::move(options)) {}

  void add(const std::string& kernel, const std::string& name, const CaseResult& result) {
    const std::lock_guard lock(mutex_);
    switch (result.outcome) {
      case Outcome::passed:
        ++executed_[kernel];
        break;
      case Outcome::refused:
        ++skips_[kernel][result.reason];
        break;
      case Outcome::failed:
        ++executed_[kernel];
        ADD_FAILURE() << result.reason << "\n  fovea check" << options_ << " --kernel " << kernel
                      << " " << name;
        break;
    }
  }
  [[nodiscard]] std::int64_t executed(const std::string& kernel) const {
    const auto found = executed_.find(kernel);
    return found == executed_.end() ? 0 : found->second;
  }
  void print() const {
    for (const auto& [kernel, count] : executed_) {
      std::cout << kernel << ": " << count << " executed\n";
    }
    for (const auto& [kernel, reasons] : skips_) {
      for (const auto& [reason, count] : reasons) {
        std::cout << "  skipped " << kernel << " " << count << " x " << reason << "\n";
      }
    }
  }

 private:
  std::string options_;
  std::mutex mutex_;
  std::map<std::string, std::int64_t> executed_;
  std::map<std::string, std::map<std::string, std::int64_t>> skips_;
};

}  // namespace fovea::cases
