// Measuring the machine, where the tool itself cannot be asked quickly.
#include "cli/peak.h"

#include <gtest/gtest.h>

namespace fovea::cli {
namespace {

TEST(Peak, MoreThreadsThanPartsOfTheMemory) { EXPECT_GT(measure_read_bandwidth(513, 0.001), 0); }

}  // namespace
}  // namespace fovea::cli
