// Names of cases: strict, canonical, and complete enough to reproduce the case.
#include <gtest/gtest.h>

#include "cases/case.h"
#include "cases/inputs.h"
#include "cases/random_case.h"
#include "cases/table.h"

namespace fovea::cases {
namespace {

std::string error_of(const std::string& name) {
  const Result<Case> parsed = parse_case(name);
  return parsed.ok() ? "" : parsed.status().message();
}

TEST(CaseName, RoundTripOfTheTable) {
  std::set<std::string> seen;
  for (const TableEntry& entry : table()) {
    EXPECT_EQ(name_of(entry.spec), entry.name);
    EXPECT_FALSE(entry.hazard.empty()) << entry.name;
    EXPECT_TRUE(seen.insert(entry.name).second) << entry.name << " stands twice";
  }
  EXPECT_GE(table().size(), 150u);
}

TEST(CaseName, RoundTripOfRandomCases) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const Case spec = random_case(seed, whole_scope());
    const std::string name = name_of(spec);
    const Result<Case> parsed = parse_case(name);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(name_of(*parsed), name);
  }
}

TEST(CaseName, TokensMayComeInAnyOrder) {
  const Result<Case> parsed = parse_case("causal_br_bf16_d64_k513_q257_hkv2_hq8_b2_dv32");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(name_of(*parsed), "b2_hq8_hkv2_q257_k513_d64_dv32_bf16_causal_br");
}

TEST(CaseName, ErrorsNameTheToken) {
  const std::string base = "b1_hq2_hkv2_q5_k7_d8_f32";
  EXPECT_EQ(error_of(base), "");
  EXPECT_NE(error_of(base + "_casual").find("'casual'"), std::string::npos);
  EXPECT_NE(error_of(base + "_f16").find("'f16' sets dtype twice"), std::string::npos);
  EXPECT_NE(error_of(base + "_q7").find("twice"), std::string::npos);
  EXPECT_NE(error_of(base + "_").find("unknown token ''"), std::string::npos);
  EXPECT_NE(error_of(base + "_window-tl--1-0").find("unknown token"), std::string::npos);
  EXPECT_NE(error_of(base + "_window-mid-1-0").find("unknown token"), std::string::npos);
  EXPECT_NE(error_of(base + "_scale1x").find("'scale1x'"), std::string::npos);
  EXPECT_NE(error_of(base + "_scalenan").find("finite"), std::string::npos);
  EXPECT_NE(error_of(base + "_mask-bool-qb-random").find("bhqk"), std::string::npos);
  EXPECT_NE(error_of("b1_hq2_hkv2_q5_d8_f32").find("'k' is missing"), std::string::npos);
  EXPECT_NE(error_of("b1_hq2_hkv2_q5_k7_d8").find("dtype is missing"), std::string::npos);
  EXPECT_NE(error_of("b1_hq2_hkv2_q5_k7_d99999999999999999999_f32").find("unknown token"),
            std::string::npos);
  EXPECT_NE(error_of("b-1_hq2_hkv2_q5_k7_d8_f32").find("got -1"), std::string::npos);
  EXPECT_NE(error_of("").find("unknown token ''"), std::string::npos);
}

TEST(CaseName, CombinationsThatTheContractRefuses) {
  EXPECT_NE(error_of("b1_hq8_hkv3_q5_k7_d8_f32"), "");
  EXPECT_NE(error_of("b1_hq2_hkv2_q5_k7_d513_f32"), "");
  EXPECT_NE(error_of("b1_hq2_hkv2_q5_k7_d8_f32-f32-bf16"), "");
  EXPECT_NE(error_of("b1_hq2_hkv2_q5_k7_d8_f32_paged4"), "");
  EXPECT_NE(error_of("b1_hq2_hkv2_q5_k7_d8_f32_causal_alibi-br-h"), "");
  EXPECT_NE(error_of("b1_hq2_hkv2_q5_k7_d8_f32_dmask"), "");
  EXPECT_NE(error_of("b1_hq2_hkv2_q5_k7_d8_f32_packed_qkv"), "");
  EXPECT_NE(error_of("b1_hq2_hkv2_q5_k7_d7_f32_rope-il-half-s-all-f32"), "");
}

TEST(CaseName, TensorsThatNoMachineHoldsAreRefused) {
  const std::string many = "b1048576_hq1048576_hkv1048576_q1048576_k1_d16_f32";
  EXPECT_NE(error_of(many).find("2^40 elements"), std::string::npos) << error_of(many);
  const std::string long_one = "b1_hq1_hkv1_q1048576_k1048576_d64_f32";
  EXPECT_EQ(error_of(long_one), "");
  EXPECT_EQ(error_of(long_one + "_mask-bool-b1qk-random"), "");
  const std::string heads = "b1_hq1024_hkv1_q1048576_k1048576_d64_f32";
  EXPECT_EQ(error_of(heads + "_mask-bool-b1qk-random"), "");
  EXPECT_NE(error_of(heads + "_mask-bool-bhqk-random").find("2^40"), std::string::npos);
  const std::string base = "b1_hq2_hkv2_q5_k7_d8_f32";
  EXPECT_NE(error_of(base + "_seqused_paged1048577").find("2^20"), std::string::npos);
  EXPECT_NE(error_of(base + "_rope-il-half-s-all-f32_ropeoff-1048577-0").find("2^20"),
            std::string::npos);
}

TEST(CaseName, InputsFollowFromNameAndSeed) {
  const Case spec =
      parse_case("b3_hq4_hkv2_q20_k30_d8_bf16_causal_br_varlen_dropout0.5_dlse").value();
  const auto first = make_inputs(spec, 7), same = make_inputs(spec, 7),
             other = make_inputs(spec, 8);
  EXPECT_EQ(first->hash, same->hash);
  EXPECT_NE(first->hash, other->hash);
  EXPECT_EQ(first->lengths.q, other->lengths.q);
  EXPECT_TRUE(first->intact());
}

}  // namespace
}  // namespace fovea::cases
