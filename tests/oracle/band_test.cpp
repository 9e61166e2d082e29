// Band arithmetic against the definition, evaluated in 128-bit integers.
#include "contract/band.h"

#include <random>

#include <gtest/gtest.h>

namespace fovea::oracle {
namespace {

__extension__ using Wide = __int128;

/// -left <= j - (i + o) <= right, 0 <= j < kv_len.
bool defined(const std::optional<Band>& band, std::int64_t q_len, std::int64_t kv_len,
             std::int64_t i, std::int64_t j) {
  if (j < 0 || j >= kv_len) return false;
  if (!band) return true;
  const Wide o = band->anchor == Anchor::bottom_right ? Wide{kv_len} - q_len : Wide{0};
  const Wide distance = Wide{j} - (Wide{i} + o);
  if (band->left != kUnbounded && distance < -Wide{band->left}) return false;
  return band->right == kUnbounded || distance <= Wide{band->right};
}

std::int64_t draw_side(std::mt19937_64& random) {
  switch (random() % 6) {
    case 0:
      return kUnbounded;
    case 1:
      return kUnbounded - 1 - static_cast<std::int64_t>(random() % 30);
    case 2:
      return static_cast<std::int64_t>(random() >> 1);
    default:
      return static_cast<std::int64_t>(random() % 12);
  }
}

TEST(BandArithmetic, small_lengths_against_the_definition) {
  std::mt19937_64 random(1);
  for (int n = 0; n < 20000; ++n) {
    const auto q_len = static_cast<std::int64_t>(random() % 14);
    const auto kv_len = static_cast<std::int64_t>(random() % 14);
    std::optional<Band> band;
    if (n % 10 != 0)
      band = Band::window(random() % 2 == 0 ? Anchor::top_left : Anchor::bottom_right,
                          draw_side(random), draw_side(random));
    const ResolvedBand resolved = resolve(band, q_len, kv_len);
    SCOPED_TRACE(testing::Message()
                 << "q " << q_len << " kv " << kv_len << " anchor "
                 << (band ? static_cast<int>(band->anchor) : 0) << " left "
                 << (band ? band->left : -1) << " right " << (band ? band->right : -1));
    for (std::int64_t i = 0; i < q_len; ++i) {
      const Range keys = resolved.keys_of(i);
      ASSERT_TRUE(0 <= keys.begin && keys.begin <= keys.end && keys.end <= kv_len);
      for (std::int64_t j = 0; j < kv_len; ++j) {
        const bool visible = defined(band, q_len, kv_len, i, j);
        ASSERT_EQ(keys.begin <= j && j < keys.end, visible) << i << "," << j;
      }
    }
  }
}

TEST(BandArithmetic, huge_lengths_against_the_definition) {
  std::mt19937_64 random(2);
  constexpr std::int64_t kHuge = kUnbounded - 1;
  for (int n = 0; n < 200000; ++n) {
    const auto length = [&]() -> std::int64_t {
      const std::uint64_t kind = random() % 4;
      if (kind == 0) return 1 + static_cast<std::int64_t>(random() % 100);
      if (kind == 1) return kHuge - static_cast<std::int64_t>(random() % 100);
      return 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(kHuge));
    };
    const std::int64_t q_len = length(), kv_len = length();
    const Band band = Band::window(random() % 2 == 0 ? Anchor::top_left : Anchor::bottom_right,
                                   draw_side(random), draw_side(random));
    const ResolvedBand resolved = resolve(band, q_len, kv_len);
    const auto pick = [&](std::int64_t limit) {
      const std::uint64_t kind = random() % 3;
      if (kind == 0) return std::int64_t{0};
      if (kind == 1) return limit - 1;
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
    };
    const std::int64_t i = pick(q_len);
    const Range keys = resolved.keys_of(i);
    for (const std::int64_t near :
         {pick(kv_len), keys.begin - 1, keys.begin, keys.end - 1, keys.end}) {
      if (near < 0 || near >= kv_len) continue;
      const bool visible = defined(band, q_len, kv_len, i, near);
      ASSERT_EQ(keys.begin <= near && near < keys.end, visible)
          << "q " << q_len << " kv " << kv_len << " i " << i << " j " << near << " anchor "
          << static_cast<int>(band.anchor) << " left " << band.left << " right " << band.right;
    }
  }
}

TEST(BandArithmetic, saturating_add) {
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(saturating_add(kUnbounded, 1), kUnbounded);
  EXPECT_EQ(saturating_add(kMin, -1), kMin);
  EXPECT_EQ(saturating_add(kUnbounded, kMin), -1);
  EXPECT_EQ(saturating_add(-3, 5), 2);
}

}  // namespace
}  // namespace fovea::oracle
