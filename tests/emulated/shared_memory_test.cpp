// CUDA kernels on emulated devices that have less shared memory: 163 KB as sm_80 has, 99 KB as
// sm_86, sm_89 and sm_120 have. Each cap is a run of its own (FOVEA_CUDA_SHARED_KB), and takes the
// smallest case of each tile there is to choose.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "../cases/tally.h"
#include "cases/device_copies.h"
#include "cases/table.h"
#include "cases/work.h"
#include "emulated_device.h"

namespace fovea::cases {
namespace {

/// What the choice of a tile goes by.
auto tile_kind_of(const Case& c) {
  const std::int64_t dim = std::max(c.head_dim, c.v_head_dim);
  const int bucket = dim <= 64 ? 64 : dim <= 128 ? 128 : dim <= 256 ? 256 : 512;
  const bool masked = c.mask.dtype != DType::none || c.softcap > 0 || c.alibi != SlopeKind::none ||
                      c.dropout.probability > 0;
  const bool few = c.q_len * (c.q_heads / c.kv_heads) <= 16;
  return std::tuple(c.compute(), c.tf32, bucket, masked, few, c.dmask);
}

std::vector<const TableEntry*> cases_of_all_tiles() {
  std::map<decltype(tile_kind_of({})), const TableEntry*> smallest;
  for (const TableEntry& entry : table()) {
    if (entry.spec.q_len * entry.spec.kv_len == 0 || entry.spec.compute() == DType::f64) continue;
    const TableEntry*& best = smallest[tile_kind_of(entry.spec)];
    if (best == nullptr || tiled_flops_of(entry.spec) < tiled_flops_of(best->spec)) best = &entry;
  }
  std::vector<const TableEntry*> chosen;
  for (const auto& [kind, entry] : smallest)
    if (tiled_flops_of(entry->spec) < 2e8) chosen.push_back(entry);
  return chosen;
}

TEST(EmulatedSharedMemory, ACaseOfEachTile) {
  ASSERT_TRUE(asked_for_emulation);
  const char* cap = std::getenv("FOVEA_CUDA_SHARED_KB");
  if (cap == nullptr) GTEST_SKIP() << "no cap in FOVEA_CUDA_SHARED_KB";
  if (!is_emulated(kEmulated)) GTEST_SKIP() << "this build emulates no device";
  for (const DeviceInfo& info : devices())
    if (info.emulated)
      EXPECT_NE(info.capabilities.find(std::string(" ") + cap + " KB"), std::string::npos)
          << info.capabilities;
  const std::vector<const TableEntry*> chosen = cases_of_all_tiles();
  ASSERT_GE(chosen.size(), 20u);
  Tally tally(" --emulate");
  for (const TableEntry* entry : chosen) {
    PreparedCase prepared(entry->spec, default_seed(entry->spec));
    for (const char* kernel :
         {"cuda.sm80.forward", "cuda.sm80.decode.forward", "cuda.sm80.backward"})
      tally.add(kernel, entry->name, run_case(prepared, kernel));
  }
  tally.print();
  EXPECT_GE(tally.executed("cuda.sm80.forward"), static_cast<std::int64_t>(chosen.size()) - 1);
  EXPECT_GE(tally.executed("cuda.sm80.backward"), static_cast<std::int64_t>(chosen.size()) - 6);
  EXPECT_GE(tally.executed("cuda.sm80.decode.forward"), 4);
}

}  // namespace
}  // namespace fovea::cases
