#include "core/self_check.h"

#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "contract/format.h"
#include "core/kernel_table.h"
#include "core/small_case.h"
#include "core/validate.h"

namespace fovea {
namespace {

std::int64_t bucket_of(std::int64_t dim) {
  for (const std::int64_t limit : {64, 128, 256})
    if (dim <= limit) return limit;
  return 512;
}

/// Features that change what is computed and that a small case can reproduce; layouts and lengths
/// (varlen, paging, segments) are left to the tests.
constexpr Features kReproduced =
    Feature::gqa | Feature::band | Feature::bool_mask | Feature::additive_mask | Feature::alibi |
    Feature::softcap | Feature::sinks | Feature::dropout | Feature::qk_norm | Feature::rope |
    Feature::mixed_dtypes | Feature::f32_result | Feature::tf32 | Feature::dlse;

/// Class of problems that one check stands for.
using Key = std::tuple<const Kernel*, DType, std::int64_t, std::int64_t, std::uint32_t, bool, int>;

Key key_of(const Kernel& kernel, const Problem& problem) {
  const Features features(problem.features.bits & kReproduced.bits);
  return {&kernel,
          problem.compute,
          bucket_of(problem.head_dim),
          bucket_of(problem.v_head_dim),
          features.bits,
          std::signbit(problem.scale),
          problem.device.index};
}

double tolerance(DType compute, bool tf32) {
  switch (compute) {
    case DType::f64:
      return 1e-6;
    case DType::f32:
      return tf32 ? 5e-3 : 1e-5;
    case DType::f16:
      return 5e-3;
    default:
      return 3e-2;
  }
}

struct Outcome {
  Refusal refusal;
  double error = 0;
};

/// The CPU's, for kernels of every device.
const Kernel* oracle_of(const Kernel& kernel) {
  for (const Kernel* other : kernel_table())
    if (other->direction == kernel.direction && other->device == DeviceType::cpu &&
        std::string_view(other->family) == "reference")
      return other;
  return nullptr;
}

Refusal could_not_run(const Status& status) {
  // Refusals point to static storage; a failure of the check itself is a defect worth keeping.
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<std::string>> kept;
  const std::lock_guard lock(mutex);
  auto& text = kept[status.message()];
  if (!text)
    text = std::make_unique<std::string>("its self-check could not run: " + status.message());
  return Refusal::because(RefusalCode::other, text->c_str());
}

/// A call of the problem's class, with the first of these numbers of query rows that the kernel
/// serves: fewer than keys; as many, for kernels that want every key seen, which a band from the
/// top left does not give otherwise; few, for those of decoding.
Result<double> compare_small(const Kernel& kernel, const Kernel& oracle, const Problem& problem) {
  constexpr std::int64_t kManyQueries = 37, kFewQueries = 5;
  for (const std::int64_t queries : {kManyQueries, SmallCase::kKeys, kFewQueries}) {
    SmallCase small(problem, queries);
    if (small.served_by(kernel)) return small.compare(kernel, oracle);
  }
  return SmallCase(problem, 1).compare(kernel, oracle);
}

Outcome run_check(const Kernel& kernel, const Kernel& oracle, const Problem& problem) {
  Result<double> error = compare_small(kernel, oracle, problem);
  if (!error.ok()) return {could_not_run(error.status())};
  const double limit = tolerance(problem.compute, problem.features.has(Feature::tf32));
  Outcome outcome{Refusal::accept(), *error};
  if (!(*error <= limit)) {
    outcome.refusal = Refusal::because(RefusalCode::self_check_failed);
    outcome.refusal.value = *error;
    outcome.refusal.limit = limit;
  }
  return outcome;
}

struct Checks {
  std::mutex mutex;
  std::map<Key, Outcome> done;
};

Checks& checks() {
  static auto* instance = new Checks;  // outlives static destruction: other threads may still plan
  return *instance;
}

}  // namespace

Refusal check_instantiation(const Kernel& kernel, const Problem& problem) {
  const Kernel* oracle = oracle_of(kernel);
  if (oracle == nullptr || kernel.explicit_only) return Refusal::accept();
  if (problem.batch == 0 || !oracle->supports(problem).serves()) return Refusal::accept();
  const Key key = key_of(kernel, problem);
  Checks& all = checks();
  const std::lock_guard lock(all.mutex);
  auto found = all.done.find(key);
  if (found == all.done.end())
    found = all.done.emplace(key, run_check(kernel, *oracle, problem)).first;
  return found->second.refusal;
}

SelfCheckState self_check_state(const Kernel& kernel) {
  Checks& all = checks();
  const std::lock_guard lock(all.mutex);
  SelfCheckState result;
  int passed = 0;
  double worst = 0;
  for (const auto& [key, outcome] : all.done) {
    if (std::get<0>(key) != &kernel) continue;
    if (!outcome.refusal.serves()) return {SelfCheck::failed, render(outcome.refusal)};
    ++passed;
    worst = std::max(worst, outcome.error);
  }
  if (passed == 0) return result;
  return {SelfCheck::passed, formatted("{} instantiation{}, largest error {:.1e}", passed,
                                       passed == 1 ? "" : "s", worst)};
}

}  // namespace fovea
