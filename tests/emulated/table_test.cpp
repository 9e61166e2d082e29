// CUDA kernels on an emulated device, on the small cases of the table: calls of a tile or two with
// a ragged tail, and every feature.
#include "cases/table.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "../cases/tally.h"
#include "cases/device_copies.h"
#include "cases/work.h"
#include "emulated_device.h"

namespace fovea::cases {
namespace {

/// Words of a name without their numbers: what kinds of things a case has.
std::set<std::string> kinds_of(const std::string& name) {
  std::set<std::string> kinds;
  std::istringstream words(name);
  for (std::string word; std::getline(words, word, '_');) {
    std::erase_if(word, [](unsigned char c) { return std::isdigit(c) || c == '.'; });
    kinds.insert(word);
  }
  return kinds;
}

/// Cases of little work, and of the others, the smaller first, those with something that no smaller
/// one has.
std::vector<const TableEntry*> small_cases() {
#if defined(__SANITIZE_ADDRESS__)
  constexpr double kLittle = 5e6, kMost = 5e7;  // several times as slow
#else
  constexpr double kLittle = 2e7, kMost = 3e8;
#endif
  std::vector<const TableEntry*> all, chosen;
  for (const TableEntry& entry : table()) all.push_back(&entry);
  const auto work = [](const TableEntry* entry) { return tiled_flops_of(entry->spec); };
  std::stable_sort(all.begin(), all.end(),
                   [&](const TableEntry* a, const TableEntry* b) { return work(a) < work(b); });
  std::set<std::string> seen;
  for (const TableEntry* entry : all) {
    if (work(entry) > kMost) break;
    const std::size_t before = seen.size();
    seen.merge(kinds_of(entry->name));
    if (work(entry) <= kLittle || seen.size() > before) chosen.push_back(entry);
  }
  return chosen;
}

std::vector<KernelInfo> emulated_kernels() {
  std::vector<KernelInfo> emulated = kernels();
  std::erase_if(emulated, [](const KernelInfo& kernel) {
    return !kernel.available || !is_emulated({kernel.device, 0});
  });
  return emulated;
}

TEST(EmulatedKernels, SmallCasesOfTheTable) {
  ASSERT_TRUE(asked_for_emulation);
  const std::vector<KernelInfo> emulated = emulated_kernels();
  if (emulated.empty()) GTEST_SKIP() << "this build has no kernels for an emulated device";
  const std::vector<const TableEntry*> chosen = small_cases();
  ASSERT_GE(chosen.size(), 150u);
  Tally tally(" --emulate");
  for (const TableEntry* entry : chosen) {
    std::map<std::string, PreparedCase> prepared;
    for (const KernelInfo& kernel : emulated) {
      const Case spec = suited_to(kernel.id, entry->spec);
      const std::string name = name_of(spec);
      PreparedCase& its = prepared.try_emplace(name, spec, default_seed(spec)).first->second;
      tally.add(kernel.id, name, run_case(its, kernel.id));
    }
  }
  tally.print();
  for (const KernelInfo& kernel : emulated) {
    const std::size_t least = kernel.specialist ? 10 : chosen.size() / 2;
    EXPECT_GE(tally.executed(kernel.id), static_cast<std::int64_t>(least)) << kernel.id;
  }
}

/// Scores of some 10^5 magnify what their products leave out, in the few rows of which two keys
/// share the weight: a device's number of draws has some, the emulation's usual one has none.
TEST(EmulatedKernels, LargeLogitsOverAllDraws) {
  ASSERT_TRUE(asked_for_emulation);
  if (emulated_kernels().empty())
    GTEST_SKIP() << "this build has no kernels for an emulated device";
  const std::string name = "b1_hq2_hkv2_q50_k70_d64_f32_scale3_std1000";
  const Case spec = parse_case(name).value();
  PreparedCase prepared(spec, default_seed(spec));
  const int draws = draws_of(spec);
  Tally tally(" --emulate --draws " + std::to_string(draws));
  for (const char* kernel : {"cuda.sm80.forward", "cuda.sm80.backward"}) {
    tally.add(kernel, name, run_case(prepared, kernel, {0}, draws));
    EXPECT_EQ(tally.executed(kernel), 1) << kernel;
  }
}

}  // namespace
}  // namespace fovea::cases
