// cuda.reference on a GPU against cpu.reference (tests/cases/oracles.h), on the whole table.
#include <iostream>
#include <optional>

#include "../cases/oracles.h"
#include "cases/table.h"
#include "cases/work.h"
#include "gpu.h"

namespace fovea::gpu {
namespace {

using cases::Case;

class Reference : public OnGpu {
 protected:
  cases::OracleComparison both_{kGpu};
};

TEST_F(Reference, whole_table_in_its_dtypes_and_in_f64) {
  for (const cases::TableEntry& entry : cases::table()) {
    if (entry.spec.layout == cases::Layout::wide) continue;  // gigabytes of addresses
    // The CPU's oracle takes some seconds for as much.
    if (cases::flops_of(entry.spec, cases::Direction::forward) > 2e9) continue;
    both_.add(entry.spec, cases::Width::as_asked);
    const std::optional<Case> wide = cases::with_dtype(entry.spec, DType::f64);
    if (wide) both_.add(*wide, cases::Width::widest);
  }
  std::cout << both_.forward << " forward, " << both_.backward << " backward\n";
  EXPECT_GE(both_.forward, 600);
  EXPECT_GE(both_.backward, 580);
}

}  // namespace
}  // namespace fovea::gpu
