// The oracle's forward against the literal evaluation of random calls over every feature.
#include "core/validate.h"
#include "tests/oracle/random_case.h"

namespace fovea::oracle {
namespace {

TEST(Literal, random_cases_over_every_feature) {
  constexpr std::uint64_t kCases = 4000;
  int used[kFeatureCount] = {};
  for (std::uint64_t seed = 0; seed < kCases; ++seed) {
    const RandomCase c(seed, true);
    SCOPED_TRACE(c.description);
    Outputs got = forward_of(c.params);
    const Outputs want = literal_forward(c);
    // Both leave rows of no sequence as NaN.
    ASSERT_LE(max_difference(got.out, want.out), 1e-12);
    ASSERT_LE(max_difference(got.lse, want.lse), 1e-12);

    const auto problem =
        validate(ForwardArgs{c.params, got.out.mutable_view(), got.lse.mutable_view()});
    ASSERT_TRUE(problem.ok());
    for (int bit = 0; bit < kFeatureCount; ++bit)
      used[bit] += problem->features.has(static_cast<Feature>(1u << bit)) ? 1 : 0;
  }
  const Features covered =
      Feature::gqa | Feature::band | Feature::bool_mask | Feature::additive_mask | Feature::alibi |
      Feature::softcap | Feature::sinks | Feature::dropout | Feature::varlen | Feature::seqused_k |
      Feature::paged | Feature::segments | Feature::qk_norm | Feature::rope;
  for (int bit = 0; bit < kFeatureCount; ++bit) {
    const auto feature = static_cast<Feature>(1u << bit);
    EXPECT_GE(used[bit], covered.has(feature) ? 200 : 0) << name_of(feature);
  }
}

}  // namespace
}  // namespace fovea::oracle
