// Candidates of others: who is tried in which order, and what is said and counted of them.
#include <gtest/gtest.h>

#include <fovea/fovea.h>

namespace fovea::test {
namespace {

using Names = std::vector<std::string>;

std::vector<Provider> candidates() {
  return {{"slow", 10, false, "", "1", "slow.py"},
          {"fast", 120, false, "", "2", "fast.so"},
          {"approximate", 130, true, "", "3", "approximate.so"},
          {"broken", 110, false, "ImportError: undefined symbol", "", ""},
          {"middle", 80, false, "", "4", "middle.so"}};
}

Choice by_name(const std::string& name, bool strict = false) {
  Choice choice;
  choice.kernel = name;
  choice.strict = strict;
  return choice;
}

TEST(Providers, PriorityOrdersThoseThatServeAndTheOthersHaveReasons) {
  const auto ranking = rank_providers(candidates());
  ASSERT_TRUE(ranking.ok());
  EXPECT_EQ(ranking->order, (Names{"fast", "middle", "slow"}));
  ASSERT_EQ(ranking->passed_over.size(), 2u);
  EXPECT_EQ(ranking->passed_over[0].kernel, "approximate");
  EXPECT_EQ(ranking->passed_over[1].reason, "ImportError: undefined symbol");
}

TEST(Providers, EqualPrioritiesAreOrderedByName) {
  const Provider list[] = {{"b", 1, false, "", "", ""}, {"a", 1, false, "", "", ""}};
  EXPECT_EQ(rank_providers(list)->order, (Names{"a", "b"}));
}

TEST(Providers, AChoiceByNameComesFirstAndStrictAlone) {
  EXPECT_EQ(rank_providers(candidates(), by_name("slow"))->order,
            (Names{"slow", "fast", "middle"}));
  EXPECT_EQ(rank_providers(candidates(), by_name("slow", true))->order, (Names{"slow"}));
  EXPECT_EQ(rank_providers(candidates(), by_name("approximate"))->order.front(), "approximate");
  Choice strict;
  strict.strict = true;
  EXPECT_EQ(rank_providers(candidates(), strict)->order, (Names{"fast"}));
}

TEST(Providers, AChoiceThatCannotServeIsAnErrorWithTheReason) {
  const Status refused = rank_providers(candidates(), by_name("broken")).status();
  EXPECT_EQ(refused.code(), StatusCode::unsupported);
  EXPECT_EQ(refused.message(),
            "[providers] \"broken\" was chosen and cannot serve: ImportError: undefined symbol");
  const Status unknown = rank_providers(candidates(), by_name("nobody")).status();
  EXPECT_EQ(unknown.code(), StatusCode::invalid);
  EXPECT_NE(unknown.message().find("known: approximate, fast"), std::string::npos);
  const Status none = rank_providers({}).status();
  EXPECT_EQ(none.message(), "[providers] nobody serves this call: there is none");
  const Provider twice[] = {{"a", 1, false, "", "", ""}, {"a", 2, false, "", "", ""}};
  EXPECT_EQ(rank_providers(twice).status().code(), StatusCode::invalid);
}

TEST(Providers, RanAndFailedAreSaidOnceAJobAndCounted) {
  Names lines;
  reset_counters();
  set_proof_level(ProofLevel::proof);
  set_proof_sink([&](std::string_view line) { lines.emplace_back(line); });
  const std::vector<Provider> all = candidates();
  for (const char* name : {"first", "second"}) {
    Job job(name);
    for (int n = 0; n < 2; ++n) {
      provider_failed(all[1], "RuntimeError: boom", "middle", &job);
      provider_ran(all[4], "d64 f32 device=cpu", &job);
    }
    EXPECT_EQ(job.kernels_ran(), Names{"middle"});
  }
  set_proof_sink({});
  set_proof_level(ProofLevel::off);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], "[fovea] NOT used fast — RuntimeError: boom; served by middle");
  EXPECT_EQ(lines[1], "[fovea] ran middle ver=4 file=middle.so d64 f32 device=cpu");
  std::uint64_t failed = 0, completed = 0;
  for (const KernelCount& k : counters().kernels) {
    if (k.kernel == "fast") failed = k.failed;
    if (k.kernel == "middle") completed = k.completed;
  }
  EXPECT_EQ(failed, 4u);
  EXPECT_EQ(completed, 4u);
  reset_counters();
  EXPECT_TRUE(counters().kernels.empty());
}

}  // namespace
}  // namespace fovea::test
