// Overlap and self-overlap of strided views, against sets of addresses.
#include "core/memory.h"

#include <random>
#include <set>

#include <gtest/gtest.h>

namespace fovea {
namespace {

std::int16_t memory[4096];

std::set<std::int64_t> offsets_of(const TensorView& view, bool& repeated) {
  std::set<std::int64_t> found;
  repeated = false;
  const std::int64_t base = static_cast<const std::int16_t*>(view.data) - memory;
  for (std::int64_t a = 0; a < view.shape[0]; ++a)
    for (std::int64_t b = 0; b < view.shape[1]; ++b)
      for (std::int64_t c = 0; c < view.shape[2]; ++c)
        if (!found.insert(base + a * view.strides[0] + b * view.strides[1] + c * view.strides[2])
                 .second)
          repeated = true;
  return found;
}

TensorView random_view(std::mt19937& random) {
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const std::int64_t shape[3] = {pick(1, 4), pick(1, 4), pick(1, 4)};
  std::int64_t strides[3];
  for (auto& stride : strides) stride = pick(0, 3) == 0 ? pick(-20, 20) : pick(0, 40);
  return {memory + 2000 + pick(-60, 60),
          DType::f16,
          {shape[0], shape[1], shape[2]},
          {strides[0], strides[1], strides[2]}};
}

TEST(Overlap, AgreesWithAddressSets) {
  std::mt19937 random(7);
  int overlapping = 0, interleaved = 0;
  for (int n = 0; n < 20000; ++n) {
    const TensorView a = random_view(random), b = random_view(random);
    bool repeated = false;
    const auto in_a = offsets_of(a, repeated), in_b = offsets_of(b, repeated);
    bool expected = false;
    for (const std::int64_t offset : in_b) expected = expected || in_a.count(offset) != 0;
    ASSERT_EQ(overlap(a, b), expected) << "case " << n;
    overlapping += expected;
    interleaved += !expected && *in_a.begin() < *in_b.rbegin() && *in_b.begin() < *in_a.rbegin();
  }
  EXPECT_GT(overlapping, 1000);
  EXPECT_GT(interleaved, 1000);
}

TEST(Overlap, PackedQkvGradientsAreDisjoint) {
  const auto qkv = packed_qkv(memory, DType::f16, 2, 16, 3, 8);
  EXPECT_FALSE(overlap(qkv.q, qkv.k));
  EXPECT_FALSE(overlap(qkv.k, qkv.v));
  EXPECT_TRUE(overlap(qkv.k, qkv.k));
}

TEST(WritesEachElementOnce, NeverAcceptsARepeat) {
  std::mt19937 random(8);
  int accepted = 0;
  for (int n = 0; n < 20000; ++n) {
    const TensorView view = random_view(random);
    bool repeated = false;
    offsets_of(view, repeated);
    const bool once = writes_each_element_once(view);
    if (once) ASSERT_FALSE(repeated) << "case " << n;
    accepted += once;
  }
  EXPECT_GT(accepted, 1000);
}

TEST(CheckLayout, RejectsWhatCannotBeAddressed) {
  TensorView view(memory, DType::f16, {2, 2, 2});
  EXPECT_TRUE(check_layout("t", "x", view, 3, 3).ok());
  view.strides[0] = INT64_MIN;
  EXPECT_FALSE(check_layout("t", "x", view, 3, 3).ok());
  view.strides[0] = 4;
  view.rank = -1;
  EXPECT_EQ(check_layout("t", "x", view, 3, 3).message(),
            "[t] x must have 3 dimensions; got a shape and strides that do not match");
}

TEST(CheckLayout, SizesOfAnEmptyViewMustFitAsWell) {
  constexpr std::int64_t kLarge = std::int64_t{1} << 40;
  EXPECT_TRUE(check_layout("t", "x", TensorView(nullptr, DType::f16, {kLarge, 0, 64}), 3, 3).ok());
  EXPECT_EQ(
      check_layout("t", "x", TensorView(nullptr, DType::f16, {kLarge, kLarge, 0, 64}), 4, 4)
          .message(),
      "[t] x is larger than 63 bits can address; got shape [1099511627776, 1099511627776, 0, 64]");
}

TEST(TensorViews, PackedRowsAreContiguous) {
  const MutableTensorView rows = packed_rows(memory, DType::f16, 7, 2, 8);
  EXPECT_EQ(rows.data, memory);
  EXPECT_EQ(rows.rank, 3);
  EXPECT_EQ(rows.shape, (std::array<std::int64_t, kMaxRank>{7, 2, 8}));
  EXPECT_EQ(rows.strides, (std::array<std::int64_t, kMaxRank>{16, 8, 1}));
  const std::int16_t* constant = memory;
  static_assert(std::is_same_v<decltype(packed_rows(constant, DType::f16, 7, 2, 8)), TensorView>);
}

TEST(TensorViews, MismatchedInitialisersAreRefused) {
  const TensorView six(memory, DType::f16, {1, 1, 1, 1, 1, 1});
  EXPECT_EQ(six.rank, -1);
  const TensorView unequal(memory, DType::f16, {1, 1}, {1});
  EXPECT_EQ(unequal.rank, -1);
}

}  // namespace
}  // namespace fovea
