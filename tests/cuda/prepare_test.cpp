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

TEST_P(Prepare, delta_and_dsinks_are_what_the_formulas_say) {
  Random random(GetParam());
  for (int n = 0; n < 10; ++n) {
    SCOPED_TRACE(n);
    Sizes sizes = random_sizes(random);
    if (chance(random, 30)) sizes.rows = draw(random, 60, 130);
    const bool packed = chance(random, 40);
    const Side side = random_side(random, sizes.batch, sizes.heads, sizes.rows, false, packed);
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
    const Status status = prepare(0, args, stream());
    ASSERT_TRUE(status.ok()) << status.message();
    delta.fetch();
    dsinks.fetch();
    shares.fetch();

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
