// delta and the sinks' gradient against f64.
#include "cuda/prepare.h"

#include "tests/cuda/prologues.h"

namespace fovea::cuda {
namespace {

using namespace test;

class Prepare : public ::testing::TestWithParam<std::uint64_t> {};

/// [batch, heads, rows] or packed, with NaN between rows.
struct RowValues {
  Buffer buffer;
  plain::Input input;
};
RowValues random_rows(Random& random, const Side& side) {
  RowValues v;
  const RowSpace& space = side.space;
  const std::int64_t step = draw(random, 1, 2);
  v.input.row = step;
  v.input.head = (space.packed ? space.total() : space.rows()) * step;
  v.input.batch = space.packed ? 0 : v.input.head * space.heads();
  v.buffer = Buffer(static_cast<std::size_t>(space.array_rows() * step) * sizeof(float));
  for (std::int64_t b = 0; b < space.shape.batch; ++b)
    for (std::int64_t h = 0; h < space.heads(); ++h)
      for (std::int64_t row = 0; row < side.rows_of(b); ++row)
        v.buffer.as<float>()[space.place(side.place(b, h), row) * step] =
            static_cast<float>(normal(random));
  v.buffer.send();
  v.input.data = v.buffer.at<float>();
  return v;
}

/// How many keys row i of a sequence sees, by the contract's words.
std::int64_t keys_seen(const plain::BandArgs& band, std::int64_t q_len, std::int64_t kv_len,
                       std::int64_t i) {
  const std::int64_t anchor = i + (band.bottom_right ? kv_len - q_len : 0);
  std::int64_t count = 0;
  for (std::int64_t j = 0; j < kv_len; ++j)
    count += (band.left == INT64_MAX || j >= anchor - band.left) &&
             (band.right == INT64_MAX || j <= anchor + band.right);
  return count;
}

TEST_P(Prepare, delta_and_dsinks_are_what_the_formulas_say) {
  Random random(GetParam());
  for (int n = 0; n < 10; ++n) {
    SCOPED_TRACE(n);
    Sizes sizes = random_sizes(random);
    if (chance(random, 30)) sizes.rows = draw(random, 60, 130);
    const bool packed = chance(random, 40);
    Side side = random_side(random, sizes.batch, sizes.heads, sizes.rows, false, packed);
    const std::int64_t kv_len = side.space.shape.kv_len = draw(random, 1, sizes.rows + 2);
    OperandOptions options;
    options.segments = packed ? 1 : static_cast<int>(draw(random, 1, 3));
    options.aligned = chance(random, 40);
    options.element = random_element(random);
    const Operand out = random_operand(random, side, sizes.width, options);
    options.element = random_element(random);
    options.aligned = chance(random, 40);
    Operand dout = random_operand(random, side, sizes.width, options);
    const bool expanded = chance(random, 15);
    PrepareArgs args;
    args.space = side.space;
    args.out = out.source;
    args.dout = dout.source;
    Buffer one = buffer_of(std::vector<float>{1.5f});
    if (expanded) {
      args.dout.segments.count = 1;
      args.dout.segments.at[0] = {one.at<char>(), Element::f32, 0, sizes.rows, 0, 0, 0, 0};
    }
    const RowValues lse = random_rows(random, side), dlse = random_rows(random, side);
    RowValues lse_copy = lse, dlse_copy = dlse;
    args.lse = lse.input;
    if (chance(random, 60)) args.dlse = dlse.input;
    Buffer delta(static_cast<std::size_t>(side.space.array_rows()) * sizeof(float));
    delta.send();
    args.delta = delta.at<float>();
    Vector sinks = random_vector(random, sizes.heads);
    if (chance(random, 50)) {
      sinks.values[0] = -INFINITY;
      sinks.buffer.set(sinks.floats.element, 0, -INFINITY);
      sinks.buffer.send();
    }
    const bool wants = chance(random, 60);
    Buffer shares(prepare_bytes(side.space, wants)),
        dsinks(static_cast<std::size_t>(sizes.heads * 16));
    shares.send();
    dsinks.send();
    if (wants) {
      args.sinks = sinks.floats;
      args.dsinks = dsinks.at<void>();
      args.dsinks_element = random_element(random);
      args.dsinks_stride = 2;
      args.shares = shares.at<double>();
    }
    for (std::int64_t* reach : {&args.band.left, &args.band.right})
      if (chance(random, 60)) *reach = draw(random, 0, 3);
    args.band.bottom_right = chance(random, 40);
    Buffer tiles(static_cast<std::size_t>(args.tiles.lay_out(side.space) * RowTiles::kFloats) * 4);
    tiles.send();
    args.tiles.data = tiles.at<float>();
    Buffer zeros(16 * 37);
    zeros.send();
    args.zeros[1] = {zeros.at<void>(), 16 * 37};
    const Status status = prepare(0, args, stream());
    ASSERT_TRUE(status.ok()) << status.message();
    delta.fetch();
    dsinks.fetch();
    shares.fetch();
    tiles.fetch();
    zeros.fetch();
    for (std::int64_t k = 0; k < 4 * 37; ++k) ASSERT_EQ(zeros.get(Element::f32, k), 0);

    std::int64_t in_tiles = 0;
    for (std::int64_t b = 0; b < side.space.shape.batch; ++b)
      for (std::int64_t h = 0; h < side.space.heads(); ++h)
        for (std::int64_t row = 0; row < RowTiles::of_rows(side.rows_of(b)) * kPrepareRows; ++row) {
          const std::int64_t first = args.tiles.at(side.place(b, h), row / kPrepareRows) -
                                     args.tiles.data + row % kPrepareRows;
          const auto get = [&](int which) {
            return tiles.get(Element::f32, first + which * kPrepareRows);
          };
          in_tiles += 3;
          if (row >= side.rows_of(b)) {
            ASSERT_EQ(get(0), INFINITY);
            ASSERT_EQ(get(1), 0);
            ASSERT_EQ(get(2), 1);
            continue;
          }
          const std::int64_t at = side.space.place(side.place(b, h), row);
          const bool lone = keys_seen(args.band, side.rows_of(b), kv_len, row) == 1 &&
                            (args.sinks.data == nullptr ||
                             sinks.values[static_cast<std::size_t>(h)] == -INFINITY);
          const double saved = lse_copy.buffer.get(Element::f32, at * args.lse.row);
          ASSERT_NEAR(get(0), saved * 1.4426950408889634, 1e-6 * (1 + std::abs(saved)));
          ASSERT_EQ(get(2), lone ? 0 : 1) << row;
          const double own = args.dlse.data == nullptr
                                 ? 0
                                 : -dlse_copy.buffer.get(Element::f32, at * args.dlse.row);
          ASSERT_EQ(get(1), lone ? own : delta.get(Element::f32, at));
        }
    EXPECT_EQ(tiles.untouched(4), args.tiles.lay_out(side.space) * RowTiles::kFloats - in_tiles);

    std::int64_t written = 0;
    std::vector<double> want(static_cast<std::size_t>(sizes.heads), 0);
    for (std::int64_t b = 0; b < sizes.batch; ++b)
      for (std::int64_t h = 0; h < sizes.heads; ++h)
        for (std::int64_t row = 0; row < side.rows_of(b); ++row, ++written) {
          const std::int64_t at = side.space.place(side.place(b, h), row);
          double sum = 0;
          for (std::int64_t d = 0; d < sizes.width; ++d)
            sum += out.value(b, h, row, d) * (expanded ? 1.5 : dout.value(b, h, row, d));
          if (args.dlse.data != nullptr)
            sum -= dlse_copy.buffer.get(Element::f32, at * args.dlse.row);
          ASSERT_NEAR(delta.get(Element::f32, at), sum, 1e-5 * (1 + std::abs(sum))) << row;
          const double sink = sinks.values[static_cast<std::size_t>(h)];
          if (sink != -INFINITY)
            want[static_cast<std::size_t>(h)] -=
                std::exp(sink - lse_copy.buffer.get(Element::f32, at * args.lse.row)) * sum;
        }
    EXPECT_EQ(delta.untouched(4), side.space.array_rows() - written);
    for (std::int64_t h = 0; wants && h < sizes.heads; ++h) {
      const double y = want[static_cast<std::size_t>(h)];
      ASSERT_NEAR(dsinks.get(args.dsinks_element, 2 * h), y,
                  tolerance(args.dsinks_element) * std::abs(y) + 1e-3);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Prepare, ::testing::Range<std::uint64_t>(1, 9));

}  // namespace
}  // namespace fovea::cuda
