// cuda.reference on an emulated device against cpu.reference (tests/cases/oracles.h), on small
// cases of the table and random ones.
#include <iostream>
#include <optional>
#include <set>

#include "../cases/oracles.h"
#include "cases/work.h"
#include "emulated_device.h"
#include "small_cases.h"

namespace fovea::cases {
namespace {

class EmulatedReference : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(asked_for_emulation);
    if (!is_emulated(kEmulated)) GTEST_SKIP() << "this build emulates no device";
  }
  void expect_at_least(int forward, int backward) const {
    std::cout << both_.forward << " forward, " << both_.backward << " backward\n";
    EXPECT_GE(both_.forward, forward);
    EXPECT_GE(both_.backward, backward);
  }

  OracleComparison both_{kEmulated};
};

/// By the number of products, one after the other.
std::vector<const TableEntry*> cases_of_little_work() {
  const auto work = [](const Case& c) { return flops_of(c, Direction::forward); };
#if defined(__SANITIZE_ADDRESS__)
  return small_cases(work, 3e5, 3e6);  // several times as slow
#else
  return small_cases(work, 8e5, 1e7);
#endif
}

TEST_F(EmulatedReference, CasesOfTheTableInF64) {
  std::set<std::string> done;
  for (const TableEntry* entry : cases_of_little_work()) {
    const std::optional<Case> wide = with_dtype(entry->spec, DType::f64);
    if (wide && done.insert(name_of(*wide)).second) both_.add(*wide, Width::widest);
  }
  expect_at_least(150, 140);
}

/// Parameters that f32 does not hold, where they count.
TEST_F(EmulatedReference, ParametersInF64) {
  for (const char* name : {"b2_hq4_hkv2_q20_k37_d24_dv40_f64_scale0.3_softcap2.3",
                           "b2_hq2_hkv1_q5_k37_d8_f64_qknorm_std0.0001_dnorm"})
    both_.add(parse_case(name).value(), Width::widest);
  expect_at_least(2, 2);
}

/// Everything together.
TEST_F(EmulatedReference, RandomCases) {
#if defined(__SANITIZE_ADDRESS__)
  constexpr int kCases = 10;
#else
  constexpr int kCases = 30;
#endif
  for (int seed = 1; seed <= kCases; ++seed) {
    const Case c = random_case(static_cast<std::uint64_t>(seed), whole_scope());
    const std::optional<Case> wide = with_dtype(c, DType::f64);
    if (wide && seed % 2 == 0)
      both_.add(*wide, Width::widest);
    else
      both_.add(c, Width::as_asked);
  }
  expect_at_least(kCases - 2, kCases / 2);
}

/// What f64 does not have: roundings of operands and results, inputs of several dtypes, tf32.
TEST_F(EmulatedReference, CasesOfTheTableInOtherDtypesThanF32) {
  for (const TableEntry* entry : cases_of_little_work()) {
    const Case& c = entry->spec;
    const bool plain = c.q_dtype == DType::f32 && c.k_dtype == DType::f32 &&
                       c.v_dtype == DType::f32 && c.cast == DType::none && !c.tf32;
    if (!plain) both_.add(c, Width::as_asked);
  }
  expect_at_least(20, 20);
}

}  // namespace
}  // namespace fovea::cases
