// Cases on a device whose memory is not the host's: every layout is copied as it is, and stray
// writes are seen. In f64, in which the oracle is its own yardstick.
#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "cases/random_case.h"
#include "cases/run_case.h"
#include "cases/table.h"
#include "cases/work.h"
#include "fake_device.h"
#include "fake_kernels.h"

namespace fovea::test {
namespace {

using cases::Case;
using cases::CaseResult;
using cases::Outcome;
using cases::PreparedCase;

class DeviceCases : public testing::Test {
 protected:
  void SetUp() override {
    behaviour() = Behaviour{};
    fake_device().reset();
  }
  void TearDown() override { behaviour() = Behaviour{}; }

  static CaseResult run(const std::string& name, const std::string& kernel) {
    PreparedCase prepared(cases::parse_case(name).value(), 1);
    return cases::run_case(prepared, kernel);
  }
};

TEST_F(DeviceCases, EveryLayoutOfTheTable) {
  int forward = 0, backward = 0;
  std::set<std::string> seen;
  for (const cases::TableEntry& entry : cases::table()) {
    Case c = entry.spec;
    for (DType* dtype : {&c.q_dtype, &c.k_dtype, &c.v_dtype}) *dtype = DType::f64;
    c.head_dim = std::min<std::int64_t>(c.head_dim, 8);
    c.v_head_dim = std::min<std::int64_t>(c.v_head_dim, 8);
    if (c.dmask) c.mask.dtype = DType::f64;
    if (!cases::check_case(c).ok() || !seen.insert(cases::name_of(c)).second) continue;
    if (cases::flops_of(c, cases::Direction::forward) > 3e5) continue;
    PreparedCase prepared(c, 1);
    for (const char* kernel : {"fake.queued.forward", "fake.queued.backward"}) {
      const CaseResult result = cases::run_case(prepared, kernel);
      EXPECT_NE(result.outcome, Outcome::failed)
          << kernel << " " << cases::name_of(c) << ": " << result.reason;
      if (result.outcome == Outcome::passed)
        ++(kernel == std::string("fake.queued.forward") ? forward : backward);
    }
  }
  EXPECT_GE(forward, 120);
  EXPECT_GE(backward, 110);
}

TEST_F(DeviceCases, AWriteToAnInputIsSeen) {
  behaviour().queued_writes = Behaviour::Stray::input;
  const CaseResult result = run("b1_hq2_hkv1_q5_k7_d8_f64", "fake.queued.forward");
  EXPECT_EQ(result.outcome, Outcome::failed);
  EXPECT_EQ(result.reason, "inputs, or the bytes around them, were overwritten");
}

TEST_F(DeviceCases, AWriteAroundAnOutputIsSeen) {
  behaviour().queued_writes = Behaviour::Stray::around;
  const CaseResult result = run("b1_hq2_hkv1_q5_k7_d8_f64", "fake.queued.forward");
  EXPECT_EQ(result.outcome, Outcome::failed);
  EXPECT_EQ(result.reason, "the bytes around out were overwritten");
}

TEST_F(DeviceCases, AWrongResultIsSeen) {
  behaviour().queued_fails_late = true;
  EXPECT_EQ(run("b1_hq2_hkv1_q5_k7_d8_f64", "fake.queued.forward").outcome, Outcome::failed);
  fake_device().reset();
}

TEST_F(DeviceCases, ScopesAreAskedOnTheDevice) {
  EXPECT_TRUE(cases::scope_of("fake.queued.forward").any());
  EXPECT_NE(cases::scope_of("fake.queued.backward"), cases::whole_scope());  // no paged backward
}

}  // namespace
}  // namespace fovea::test
