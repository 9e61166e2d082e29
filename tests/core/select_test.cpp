// What counts as a fallback.
#include "core/select.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

Selection passed_over(bool specialist, const Refusal& refusal) {
  static Kernel kernel;
  kernel.specialist = specialist;
  Selection selection;
  selection.passed_over.push_back({&kernel, refusal});
  return selection;
}

TEST(Fallback, AKernelThatRefusesIsOne) {
  const Refusal refusal = Refusal::because(RefusalCode::head_dim, 8, 4);
  EXPECT_NE(passed_over(false, refusal).preferred(), nullptr);
}

TEST(Fallback, ASpecialistOutsideItsClassIsNone) {
  const Refusal refusal = Refusal::because(RefusalCode::compute_dtype, "bf16");
  EXPECT_EQ(passed_over(true, refusal).preferred(), nullptr);
}

TEST(Fallback, ASpecialistThatIsWrongIsOne) {
  const Refusal refusal = Refusal::because(RefusalCode::self_check_failed);
  EXPECT_NE(passed_over(true, refusal).preferred(), nullptr);
}

}  // namespace
}  // namespace fovea
