// CUDA kernels on an emulated device, on the small cases of the table: calls of a tile or two with
// a ragged tail, and every feature.
#include "cases/table.h"

#include <map>
#include <vector>

#include "../cases/tally.h"
#include "cases/device_copies.h"
#include "cases/work.h"
#include "emulated_device.h"
#include "small_cases.h"

namespace fovea::cases {
namespace {

/// Calls of a tile or two.
std::vector<const TableEntry*> cases_of_few_tiles() {
#if defined(__SANITIZE_ADDRESS__)
  return small_cases(tiled_flops_of, 5e6, 5e7);  // several times as slow
#else
  return small_cases(tiled_flops_of, 2e7, 3e8);
#endif
}

std::vector<KernelInfo> emulated_kernels() {
  std::vector<KernelInfo> emulated = kernels();
  std::erase_if(emulated, [](const KernelInfo& kernel) {
    return !kernel.available || !is_emulated({kernel.device, 0});
  });
  return emulated;
}

bool is_oracle(const KernelInfo& kernel) { return kernel.family == "reference"; }
/// One case in so many. What an oracle computes is judged more strictly in reference_test.cpp; here
/// it is where it writes.
std::size_t share_of(const KernelInfo& kernel) { return is_oracle(kernel) ? 4 : 1; }

TEST(EmulatedKernels, SmallCasesOfTheTable) {
  ASSERT_TRUE(asked_for_emulation);
  const std::vector<KernelInfo> emulated = emulated_kernels();
  if (emulated.empty()) GTEST_SKIP() << "this build has no kernels for an emulated device";
  const std::vector<const TableEntry*> chosen = cases_of_few_tiles();
  ASSERT_GE(chosen.size(), 150u);
  Tally tally(" --emulate");
  for (std::size_t item = 0; item < chosen.size(); ++item) {
    const TableEntry* entry = chosen[item];
    std::map<std::string, PreparedCase> prepared;
    for (const KernelInfo& kernel : emulated) {
      if (item % share_of(kernel) != 0) continue;
      const Case spec = suited_to(kernel.id, entry->spec);
      const std::string name = name_of(spec);
      PreparedCase& its = prepared.try_emplace(name, spec, default_seed(spec)).first->second;
      // Draws make up for rounding, of which an oracle has next to none.
      const int draws = is_oracle(kernel) ? 1 : 0;
      tally.add(kernel.id, name, run_case(its, kernel.id, {0}, draws));
    }
  }
  tally.print();
  for (const KernelInfo& kernel : emulated) {
    const std::size_t least = kernel.specialist ? 10 : chosen.size() / share_of(kernel) / 2;
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
