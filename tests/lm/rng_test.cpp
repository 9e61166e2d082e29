#include "lm/rng.h"

#include <cmath>

#include "tests/lm/support.h"

namespace fovea::lm {
namespace {

// The published reference implementation, state {1, 2, 3, 4}.
TEST(Rng, xoshiro256plusplus_reference_values) {
  Rng rng = Rng::from_state("0000000000000001000000000000000200000000000000030000000000000004");
  for (const std::uint64_t want : {41943041ULL, 58720359ULL, 3588806011781223ULL,
                                   3591011842654386ULL, 9228616714210784205ULL}) {
    EXPECT_EQ(rng.next(), want);
  }
}

TEST(Rng, state_is_saved_and_restored) {
  Rng rng(42);
  for (int i = 0; i < 100; ++i) rng.next();
  Rng copy = Rng::from_state(rng.state());
  EXPECT_EQ(rng, copy);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(rng.normal(), copy.normal());
  EXPECT_EQ(rng.state(), copy.state());
}

TEST(Rng, seeds_differ_and_repeat) {
  EXPECT_EQ(Rng(7).next(), Rng(7).next());
  EXPECT_NE(Rng(7).next(), Rng(8).next());
  EXPECT_NE(Rng(0).next(), 0U);
}

TEST(Rng, malformed_states_are_refused) {
  EXPECT_ERROR_HAS((void)Rng::from_state(""), "64 lower-case hexadecimal digits");
  EXPECT_ERROR_HAS((void)Rng::from_state(std::string(63, '1')), "64 lower-case");
  EXPECT_ERROR_HAS((void)Rng::from_state(std::string(64, 'g')), "64 lower-case");
  EXPECT_ERROR_HAS((void)Rng::from_state("-" + std::string(63, '1')), "64 lower-case");
  EXPECT_ERROR_HAS((void)Rng::from_state(std::string(64, '0')), "all zeros");
}

TEST(Rng, distributions) {
  Rng rng(1);
  double sum = 0;
  double squares = 0;
  std::vector<int> counts(6);
  constexpr int kDraws = 60000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = rng.uniform();
    ASSERT_TRUE(u >= 0 && u < 1);
    const double n = rng.normal();
    sum += n;
    squares += n * n;
    ++counts[rng.below(6)];
  }
  EXPECT_NEAR(sum / kDraws, 0, 0.02);
  EXPECT_NEAR(squares / kDraws, 1, 0.03);
  for (const int count : counts) EXPECT_NEAR(count, kDraws / 6, 400);
  EXPECT_EQ(rng.below(1), 0U);
  EXPECT_ERROR_HAS((void)rng.below(0), "at least 1");
}

}  // namespace
}  // namespace fovea::lm
