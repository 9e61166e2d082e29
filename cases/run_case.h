// One case on one kernel, judged by the numerics rule and by where it wrote.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fovea/plan.h>

#include "cases/case.h"
#include "cases/inputs.h"
#include "cases/numerics.h"
#include "cases/outputs.h"

namespace fovea::cases {

enum class Direction : std::uint8_t { forward, backward };

/// By the last word of a kernel's id.
Direction direction_of(std::string_view kernel);

/// Runs a kernel of the CPU as it is, without the self-check; the caller judges the result.
Status run_trusted(const ForwardArgs& args, const std::string& kernel);
Status run_trusted(const BackwardArgs& args, const std::string& kernel);

enum class Outcome : std::uint8_t { passed, failed, refused };

struct CaseResult {
  Outcome outcome = Outcome::passed;
  std::string reason;  ///< of a refusal or a failure, in words
  std::vector<Comparison> comparisons;
  bool sampled = false;    ///< judged by some of the rows
  int draws = 1;           ///< sets of inputs that the errors are taken over
  std::uint64_t hash = 0;  ///< of all results
};

/// How many sets of inputs a case is judged over. Chance decides the errors of a small tensor, the
/// kernel's and the baseline's alike, so that small cases are drawn several times; the shape alone
/// says how often, on an emulated device less often.
int draws_of(const Case& c, bool emulated = false);

/// A case with its inputs, and what the oracle and the baseline make of them, computed when first
/// needed and kept for the next kernel.
class PreparedCase {
 public:
  PreparedCase(const Case& c, std::uint64_t seed);

  /// The same case with the n-th set of inputs, n < draws_of(spec()); this one is the first.
  PreparedCase& draw(int n);

  [[nodiscard]] const Case& spec() const { return inputs_->c; }
  [[nodiscard]] std::uint64_t seed() const { return inputs_->seed; }
  [[nodiscard]] const Inputs& inputs() const { return *inputs_; }

  struct Expected {
    Outputs oracle, baseline;
    Status status;  ///< not ok: the oracle or the baseline has failed
  };
  const Expected& expected(Direction direction);
  /// Forward's results for a backward kernel to read: those of the forward kernel of its pair, or,
  /// where that refuses, the oracle's. `kernel` empty: those of the library's choice.
  Result<const Saved*> saved(const std::string& kernel);
  /// Whether the oracle is too slow for the whole case, which then is judged by some of its rows.
  [[nodiscard]] bool sampled() const { return sampled_; }

 private:
  std::unique_ptr<Inputs> inputs_;
  std::vector<std::unique_ptr<PreparedCase>> more_draws_;
  bool sampled_ = false;
  std::optional<Expected> forward_, backward_;
  std::map<std::string, Saved> saved_;  ///< by forward kernel
};

/// Runs `kernel`, on copies of the tensors where it is a device's, with each number of threads (0:
/// the default): the first is judged by the numerics rule, over all draws of the inputs, the others
/// must give the same bits. `draws`: how many sets of inputs; 0: as draws_of() says.
CaseResult run_case(PreparedCase& prepared, const std::string& kernel,
                    const std::vector<int>& threads = {0}, int draws = 0);

}  // namespace fovea::cases
