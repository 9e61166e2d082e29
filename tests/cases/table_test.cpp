// Every kernel of the build on every case of the table, and on random ones. Refusals are skips, and
// so that they cannot pass as success, a minimum of executed cases is asserted for each family and
// instruction set that this machine has.
#include "cases/table.h"

#include <algorithm>
#include <map>

#include "cases/device_copies.h"
#include "cases/each_in_threads.h"
#include "cases/random_case.h"
#include "cases/work.h"
#include "tally.h"

namespace fovea::cases {
namespace {

// Sanitizers are slow, and look at memory and races, not at numbers: each kernel gets one case in
// so many, and each case that part of the kernels. Specialists refuse most cases by themselves.
#if defined(__SANITIZE_THREAD__)
constexpr std::size_t kShare = 12;
#elif defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kShare = 3;
#else
constexpr std::size_t kShare = 1;
#endif
std::size_t share_of(const KernelInfo& kernel) {
  return kernel.specialist ? std::max<std::size_t>(kShare / 4, 1) : kShare;
}
/// `n`: the place of the kernel in the list, so that kernels get different cases.
bool is_due(std::size_t item, const KernelInfo& kernel, std::size_t n) {
  return (item + n) % share_of(kernel) == 0;
}
/// What is left of `count` cases; refused ones may fall into one share more than into another.
std::int64_t least_of_share(std::int64_t count, const KernelInfo& kernel) {
  const auto share = static_cast<std::int64_t>(share_of(kernel));
  return share == 1 ? count : count / share * 3 / 4;
}

/// Emulated devices have a test of their own, tests/emulated: they are slow.
std::vector<KernelInfo> available_kernels() {
  std::vector<KernelInfo> list = kernels();
  std::erase_if(list, [](const KernelInfo& kernel) { return is_emulated({kernel.device, 0}); });
  std::erase_if(list, [](const KernelInfo& kernel) {
    if (!kernel.available) {
      std::cout << "not available: " << kernel.id << " (" << kernel.reason << ")\n";
    }
    return !kernel.available;
  });
  return list;
}

/// Cases of the table that a kernel has to execute at least.
std::int64_t least_executed(const KernelInfo& kernel) {
  if (kernel.family == "reference" || kernel.family == "baseline") {
    return kernel.direction == "forward" ? 300 : 290;
  }
  if (kernel.device != DeviceType::cpu) return 100;
  if (kernel.id.find("_decode") != std::string::npos) return 105;  // few queries
  if (kernel.specialist) return 18;                                // bf16
  if (kernel.family == "flash") return kernel.direction == "forward" ? 300 : 295;
  if (kernel.family == "unfused") return 185;
  return 1;
}

TEST(KernelsByCases, WholeTable) {
  const std::vector<KernelInfo> all = available_kernels();
  Tally tally;
  each_in_threads(table().size(), [&](std::size_t item) {
    const TableEntry& entry = table()[item];
    std::map<std::string, PreparedCase> prepared;
    for (std::size_t n = 0; n < all.size(); ++n) {
      const KernelInfo& kernel = all[n];
      if (!is_due(item, kernel, n)) continue;
      // Specialists of the CPU stand beside kernels that serve the whole table.
      const bool on_cpu = kernel.device == DeviceType::cpu;
      const Case spec = on_cpu ? entry.spec : suited_to(kernel.id, entry.spec);
      const std::string name = name_of(spec);
      PreparedCase& its = prepared.try_emplace(name, spec, default_seed(spec)).first->second;
      tally.add(kernel.id, name, run_case(its, kernel.id));
    }
  });
  tally.print();
  for (const KernelInfo& kernel : all) {
    EXPECT_GE(tally.executed(kernel.id), least_of_share(least_executed(kernel), kernel))
        << kernel.id;
  }
}

TEST(KernelsByCases, RandomCases) {
  constexpr std::int64_t kCases = 200;
  std::map<std::string, std::vector<KernelInfo>> by_scope;
  for (const KernelInfo& kernel : available_kernels()) {
    if (!kernel.explicit_only) by_scope[scope_of(kernel.id).to_string()].push_back(kernel);
  }
  Tally tally;
  for (const auto& scope : by_scope) {
    const std::vector<KernelInfo>& group = scope.second;
    each_in_threads(kCases, [&](std::uint64_t seed) {
      const Case spec = random_case(seed, Scope(scope.first));
      PreparedCase prepared(spec, default_seed(spec));
      for (std::size_t n = 0; n < group.size(); ++n) {
        const std::string& id = group[n].id;
        if (is_due(seed, group[n], n)) tally.add(id, name_of(spec), run_case(prepared, id));
      }
    });
    for (const KernelInfo& kernel : group) {
      const std::int64_t least = kernel.specialist ? kCases / 5 : kCases * 9 / 10;
      EXPECT_GE(tally.executed(kernel.id), least_of_share(least, kernel)) << kernel.id;
    }
  }
  tally.print();
}

TEST(KernelsByCases, ResultsDoNotDependOnTheNumberOfThreads) {
  Tally tally;
  std::int64_t cases = 0;
  for (const TableEntry& entry : table()) {
    // Those large enough to be divided, and every seventh of the others.
    const bool large = flops_of(entry.spec, Direction::forward) > 5e6;
    if (!large && hash_of(entry.name) % 7 != 0) continue;
    ++cases;
    PreparedCase prepared(entry.spec, default_seed(entry.spec));
    const std::vector<KernelInfo> all = available_kernels();
    for (std::size_t n = 0; n < all.size(); ++n) {
      const auto item = static_cast<std::size_t>(cases);
      if (all[n].explicit_only || !is_due(item, all[n], n)) continue;
      tally.add(all[n].id, entry.name, run_case(prepared, all[n].id, {1, 2, 8}));
    }
  }
  EXPECT_GE(cases, 30);
}

}  // namespace
}  // namespace fovea::cases
