// Staged rows against f64, over random layouts, element types, prologues and lengths.
#include "cuda/stage.h"

#include <string>

#include "tests/cuda/prologues.h"

namespace fovea::cuda {
namespace {

using namespace test;

class Stage : public ::testing::TestWithParam<std::uint64_t> {};

enum Layout { kDense, kSegments, kPacked, kPaged };

void check(Random& random, const Sizes& sizes, Layout layout) {
  const bool keys = layout == kPaged || chance(random, 50);
  const Side side =
      random_side(random, sizes.batch, sizes.heads, sizes.rows, keys, layout == kPacked);
  OperandOptions options;
  options.segments = layout == kSegments ? static_cast<int>(draw(random, 1, 4)) : 1;
  options.paged = layout == kPaged;
  options.aligned = chance(random, 40);
  options.element = random_element(random);
  Operand x = random_operand(random, side, sizes.width, options);
  const RandomPrologue prologue =
      random_prologue(random, x, sizes.batch, chance(random, 50), chance(random, 60));
  StageArgs args;
  args.from = x.source;
  args.from.compute = random_element(random, false);
  args.from.prologue = prologue.plain;
  args.space = side.space;
  args.padded = sizes.padded;
  const Element element = args.from.compute;
  const std::size_t bytes = stage_bytes(args.space, args.padded, element);
  Buffer to(bytes);
  to.send();
  args.to = to.at<void>();
  const Status status = stage(0, args, stream());
  ASSERT_TRUE(status.ok()) << status.message();
  to.fetch();

  const bool changed = prologue.plain.norm || prologue.plain.rotate;
  std::int64_t written = 0;
  for (std::int64_t b = 0; b < sizes.batch; ++b)
    for (std::int64_t h = 0; h < x.heads; ++h)
      for (std::int64_t row = 0; row < (side.space.packed ? side.rows_of(b) : x.rows); ++row) {
        std::vector<double> want(static_cast<std::size_t>(args.padded), 0);
        if (row < side.length_of(b)) {
          std::vector<double> values;
          for (std::int64_t d = 0; d < x.width; ++d) values.push_back(x.value(b, h, row, d));
          prologue.apply(values, x.segments[x.index(b, h, row, 0)], b, row);
          std::copy(values.begin(), values.end(), want.begin());
        }
        const std::int64_t at = side.space.place(side.place(b, h), row) * args.padded;
        for (std::int64_t d = 0; d < args.padded; ++d, ++written) {
          const double got = to.get(element, at + d), y = want[static_cast<std::size_t>(d)];
          const std::string where = "row " + std::to_string(row) + " column " + std::to_string(d);
          if (changed && row < side.length_of(b) && d < x.width)
            ASSERT_NEAR(got, y, tolerance(element) * (1 + std::abs(y))) << where;
          else
            ASSERT_EQ(got, rounded(element, y)) << where;
        }
      }
  const std::int64_t size = plain::size_of(element);
  EXPECT_EQ(to.untouched(size), static_cast<std::int64_t>(bytes) / size - written);
}

TEST_P(Stage, rows_are_what_the_formulas_say) {
  Random random(GetParam());
  for (int n = 0; n < 12 && !HasFatalFailure(); ++n) {
    SCOPED_TRACE(n);
    const Sizes sizes = random_sizes(random);
    check(random, sizes, static_cast<Layout>(draw(random, 0, 3)));
  }
}

TEST(StageMany, sequences_of_a_large_batch) {
  Random random(4);
  for (int n = 0; n < 3; ++n) check(random, {70, 2, 5, 16, 16}, kPacked);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Stage, ::testing::Range<std::uint64_t>(1, 11));

TEST(StageMany, blocks_walk_over_more_tiles_than_the_grid_has) {
  Random random(5);
  const Side side = random_side(random, 1, 1, 16 * 4100 + 3, false, false);
  OperandOptions options;
  options.aligned = true;
  Operand x = random_operand(random, side, 1, options);
  StageArgs args;
  args.from = x.source;
  args.from.compute = Element::bf16;
  args.space = side.space;
  args.padded = 8;
  Buffer to(stage_bytes(args.space, args.padded, Element::bf16));
  to.send();
  args.to = to.at<void>();
  ASSERT_TRUE(stage(0, args, stream()).ok());
  to.fetch();
  for (std::int64_t row = 0; row < x.rows; ++row)
    ASSERT_EQ(to.get(Element::bf16, row * 8), rounded(Element::bf16, x.value(0, 0, row, 0)));
}

TEST(StageNan, non_finite_values_pass) {
  Random random(6);
  const Side side = random_side(random, 1, 1, 3, false, false);
  Operand x = random_operand(random, side, 16, {});
  for (std::int64_t d = 0; d < 3; ++d)
    x.buffers[0].set(Element::f32, x.places[x.index(0, 0, d, d)],
                     d == 0   ? NAN
                     : d == 1 ? INFINITY
                              : -INFINITY);
  x.buffers[0].send();
  StageArgs args;
  args.from = x.source;
  args.from.compute = Element::f16;
  args.space = side.space;
  args.padded = 16;
  Buffer to(stage_bytes(args.space, 16, Element::f16));
  to.send();
  args.to = to.at<void>();
  ASSERT_TRUE(stage(0, args, stream()).ok());
  to.fetch();
  EXPECT_TRUE(std::isnan(to.get(Element::f16, 0)));
  EXPECT_EQ(to.get(Element::f16, 17), INFINITY);
  EXPECT_EQ(to.get(Element::f16, 34), -INFINITY);
}

TEST(NeedsStage, only_what_cannot_be_read_in_place) {
  plain::Source s;
  s.width = 64;
  s.compute = Element::bf16;
  s.segments.count = 1;
  s.segments.at[0] = {reinterpret_cast<const char*>(256), Element::bf16, 0, 8, 4096, 512, 64, 1};
  EXPECT_FALSE(needs_stage(s, false));
  const auto changed = [&](auto change, bool packed = false) {
    plain::Source other = s;
    change(other, other.segments.at[0]);
    return needs_stage(other, packed);
  };
  EXPECT_TRUE(changed([](auto& x, auto&) { x.segments.count = 2; }));
  EXPECT_TRUE(changed([](auto& x, auto&) { x.compute = Element::f16; }));
  EXPECT_TRUE(changed([](auto& x, auto&) { x.prologue.norm = true; }));
  EXPECT_TRUE(changed([](auto& x, auto&) { x.prologue.rotate = true; }));
  EXPECT_TRUE(changed([](auto& x, auto&) { x.width = 60; }));
  EXPECT_TRUE(changed([](auto&, auto& at) { at.column = 2; }));
  EXPECT_TRUE(changed([](auto&, auto& at) { at.row = 65; }));
  EXPECT_TRUE(changed([](auto&, auto& at) { at.head = 4; }));
  EXPECT_TRUE(changed([](auto&, auto& at) { at.batch = 2; }));
  EXPECT_FALSE(changed([](auto&, auto& at) { at.batch = 2; }, true));
  EXPECT_FALSE(changed([](auto&, auto& at) { at.data += 8; }));  // known only when it runs
  const std::int32_t table = 0;
  EXPECT_FALSE(changed([&](auto& x, auto&) { x.pages = {&table, 0, 0, 4, 1, 8}; }));
  EXPECT_TRUE(changed([&](auto& x, auto&) { x.pages = {&table, 0, 0, 4, 1, 12}; }));
}

}  // namespace
}  // namespace fovea::cuda
