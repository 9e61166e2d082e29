// Merging of partial results, by hand and against one call over all keys.
#include <cmath>
#include <limits>

#include "call.h"

namespace fovea::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Part {
  std::vector<float> out;
  std::vector<float> lse;
  PartialResult view(std::int64_t dim) const {
    return {TensorView(out.data(), DType::f32, {1, 1, 1, dim}),
            TensorView(lse.data(), DType::f32, {1, 1, 1})};
  }
};

struct Merged {
  std::vector<float> out = std::vector<float>(2, -7);
  float lse = -7;
  Status status;
};

Merged merge(const std::vector<Part>& parts, const float* sink = nullptr) {
  std::vector<PartialResult> views;
  for (const Part& part : parts) views.push_back(part.view(2));
  Merged m;
  m.status =
      merge_partials(views, sink == nullptr ? TensorView() : TensorView(sink, DType::f32, {1}),
                     MutableTensorView(m.out.data(), DType::f32, {1, 1, 1, 2}),
                     MutableTensorView(&m.lse, DType::f32, {1, 1, 1}));
  return m;
}

TEST(Merge, WeighsByTheSumOfExponentials) {
  // Weights 1/4 and 3/4: exp(0) = 1, exp(log 3) = 3.
  const Merged m = merge({{{4, 0}, {0}}, {{0, 8}, {std::log(3.0f)}}});
  ASSERT_TRUE(m.status.ok()) << m.status.message();
  EXPECT_FLOAT_EQ(m.out[0], 1);
  EXPECT_FLOAT_EQ(m.out[1], 6);
  EXPECT_FLOAT_EQ(m.lse, std::log(4.0f));
}

TEST(Merge, EmptyPartsMayHoldAnything) {
  const Merged m = merge({{{NAN, kInfinity}, {-kInfinity}}, {{3, 5}, {2}}});
  EXPECT_EQ(m.out, (std::vector<float>{3, 5}));
  EXPECT_EQ(m.lse, 2);
}

TEST(Merge, AllEmptyIsZero) {
  const Merged two = merge({{{1, 1}, {-kInfinity}}, {{2, 2}, {-kInfinity}}});
  EXPECT_EQ(two.out, (std::vector<float>{0, 0}));
  EXPECT_EQ(two.lse, -kInfinity);
  const Merged none = merge({});
  ASSERT_TRUE(none.status.ok());
  EXPECT_EQ(none.out, (std::vector<float>{0, 0}));
  EXPECT_EQ(none.lse, -kInfinity);
}

TEST(Merge, TheSinkIsAddedOnce) {
  const float sink = std::log(2.0f);
  const Merged m = merge({{{4, 0}, {0}}, {{4, 0}, {0}}}, &sink);  // 1 + 1 + 2
  EXPECT_FLOAT_EQ(m.out[0], 2);
  EXPECT_FLOAT_EQ(m.lse, std::log(4.0f));
  const Merged empty = merge({{{4, 0}, {-kInfinity}}}, &sink);
  EXPECT_EQ(empty.out, (std::vector<float>{0, 0}));
  EXPECT_FLOAT_EQ(empty.lse, sink);
}

TEST(Merge, NanInAPartIsKept) {
  EXPECT_TRUE(std::isnan(merge({{{NAN, 1}, {0}}, {{1, 1}, {0}}}).out[0]));
  EXPECT_TRUE(std::isnan(merge({{{1, 1}, {NAN}}, {{1, 1}, {0}}}).lse));
}

TEST(Merge, NanInALseIsKeptWhateverFollows) {
  for (const float other : {-kInfinity, 0.0f, kInfinity}) {
    for (const bool first : {true, false}) {
      const Part nan{{1, 1}, {NAN}}, rest{{1, 1}, {other}};
      const Merged m = first ? merge({nan, rest}) : merge({rest, nan});
      EXPECT_TRUE(std::isnan(m.lse)) << other;
      EXPECT_TRUE(std::isnan(m.out[0])) << other;
    }
  }
}

TEST(Merge, PlusInfinityIsKept) {
  // As in one call with a score of +inf: its own weight is inf - inf.
  const Merged m = merge({{{1, 1}, {kInfinity}}, {{3, 3}, {0}}});
  EXPECT_EQ(m.lse, kInfinity);
  EXPECT_TRUE(std::isnan(m.out[0]));
  const Merged sink = merge({{{1, 1}, {0}}}, &kInfinity);
  EXPECT_EQ(sink.lse, kInfinity);
  EXPECT_EQ(sink.out, (std::vector<float>{0, 0}));
}

TEST(Merge, LargeLseDoNotOverflow) {
  const Merged m = merge({{{1, 1}, {80000}}, {{3, 3}, {80000}}});
  EXPECT_FLOAT_EQ(m.out[0], 2);
  EXPECT_FLOAT_EQ(m.lse, 80000 + std::log(2.0f));
}

TEST(Merge, HalvesOfTheKeysGiveTheWhole) {
  Call whole;
  ASSERT_TRUE(forward(whole.forward_args()).ok());
  std::vector<Call> half(2);
  std::vector<PartialResult> parts;
  for (int n = 0; n < 2; ++n) {
    ForwardArgs args = half[n].forward_args();
    for (Operand* operand : {&args.params.k, &args.params.v}) {
      TensorView& t = operand->segments[0].tensor;
      t.shape[2] = n == 0 ? 3 : 4;
      if (n == 1) t.data = static_cast<const float*>(t.data) + 3 * Call::kDim;
    }
    ASSERT_TRUE(forward(args).ok());
    parts.push_back({args.out.segments[0].tensor, args.lse});
  }
  Call merged;
  const ForwardArgs args = merged.forward_args();
  ASSERT_TRUE(merge_partials(parts, {}, args.out.segments[0].tensor, args.lse).ok());
  for (std::size_t n = 0; n < whole.out.size(); ++n)
    EXPECT_NEAR(merged.out[n], whole.out[n], 2e-6f);
  for (std::size_t n = 0; n < whole.lse.size(); ++n)
    EXPECT_NEAR(merged.lse[n], whole.lse[n], 2e-6f);
}

TEST(Merge, Refusals) {
  Part part{{1, 2}, {0}};
  float out[2] = {}, lse = 0;
  const MutableTensorView out_view(out, DType::f32, {1, 1, 1, 2});
  const MutableTensorView lse_view(&lse, DType::f32, {1, 1, 1});
  const std::vector<PartialResult> parts = {part.view(2)};
  expect_error(merge_partials(parts, {}, {}, lse_view), StatusCode::invalid,
               "[merge] out is missing");
  expect_error(
      merge_partials(parts, {}, MutableTensorView(out, DType::f32, {1, 1, 2, 1}), lse_view),
      StatusCode::invalid,
      "[merge] partial out must have out's shape [1, 1, 2, 1]; got [1, 1, 1, 2]");
  expect_error(merge_partials(parts, TensorView(&lse, DType::f32, {2}), out_view, {}),
               StatusCode::invalid, "[merge] sinks must have shape [1]; got [2]");
  expect_error(
      merge_partials(parts, {}, MutableTensorView(part.out.data(), DType::f32, {1, 1, 1, 2}), {}),
      StatusCode::invalid, "[merge] output out overlaps a partial result");
}

}  // namespace
}  // namespace fovea::test
