// Gradients on their way back through the prologue against f64.
#include "cuda/finish.h"

#include <string>

#include "cuda/woven_sums.h"
#include "tests/cuda/prologues.h"

namespace fovea::cuda {
namespace {

using namespace test;

class Finish : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(Finish, gradients_are_what_the_formulas_say) {
  Random random(GetParam());
  for (int n = 0; n < 12; ++n) {
    const Sizes sizes = random_sizes(random);
    const int layout = static_cast<int>(draw(random, 0, 2));  // dense, segments, packed
    const Side side =
        random_side(random, sizes.batch, sizes.heads, sizes.rows, chance(random, 50), layout == 2);
    OperandOptions options;
    options.segments = layout == 1 ? static_cast<int>(draw(random, 1, 4)) : 1;
    options.aligned = chance(random, 40);
    options.element = random_element(random);
    const Operand x = random_operand(random, side, sizes.width, options);
    const RandomPrologue prologue =
        random_prologue(random, x, sizes.batch, chance(random, 60), chance(random, 60));
    FinishArgs args;
    args.input = x.source;
    args.input.prologue = prologue.plain;
    args.space = side.space;
    args.woven = chance(random, 40);
    args.padded = args.woven ? ceil_div(sizes.padded, kWovenColumns) * kWovenColumns : sizes.padded;
    args.factor = 0.5f;
    // The gradient has the input's segments, but its own layout and element type.
    options.element = random_element(random);
    options.aligned = chance(random, 40);
    options.like = &x;
    Operand to = random_operand(random, side, sizes.width, options);
    poison(to);
    args.sink = to.sink();
    const Element element = args.sink.segments.at[0].element;

    // What is not to be read is NaN: sums of rows that do not count, and what pads them.
    const std::int64_t rows = ceil_div(side.space.array_rows(), kWovenRows) * kWovenRows;
    Buffer sums(static_cast<std::size_t>(rows * args.padded) * sizeof(float));
    std::vector<double> want(x.values.size());
    const auto width = static_cast<std::size_t>(x.width);
    std::vector<double> dweights(plain::kMostSegments * width, 0), magnitude = dweights;
    for (std::int64_t b = 0; b < sizes.batch; ++b)
      for (std::int64_t h = 0; h < x.heads; ++h)
        for (std::int64_t row = 0; row < side.length_of(b); ++row) {
          const bool zero = chance(random, 20);
          std::vector<double> values, g;
          for (std::int64_t d = 0; d < x.width; ++d) {
            values.push_back(x.value(b, h, row, d));
            const auto sum = zero ? 0 : static_cast<float>(normal(random));
            const std::int64_t at = side.space.place(side.place(b, h), row);
            sums.as<float>()[args.woven
                                 ? woven_row(at, args.padded) + woven_column(static_cast<int>(d))
                                 : at * args.padded + d] = sum;
            g.push_back(0.5 * static_cast<double>(sum));
          }
          const int segment = x.segments[x.index(b, h, row, 0)];
          prologue.reverse(values, g, segment, b, row, dweights);
          for (std::int64_t d = 0; d < x.width; ++d)
            want[x.index(b, h, row, d)] = g[static_cast<std::size_t>(d)];
        }
    sums.send();
    args.sums = sums.at<float>();
    const bool weights = prologue.plain.norm && chance(random, 70);
    Buffer dw(plain::kMostSegments * width * 8), shares(finish_bytes(args.space, x.width));
    const Element weight_element = random_element(random);
    for (int s = 0; weights && s < x.source.segments.count; ++s)
      args.weights[s] = {dw.at<char>() + static_cast<std::size_t>(s) * width * 8, weight_element,
                         1};
    dw.send();
    shares.send();
    args.shares = shares.at<float>();
    const bool sinks = !weights || chance(random, 80);
    if (!sinks) args.sink.segments.count = 0;
    const Status status = finish(0, args, stream());
    ASSERT_TRUE(status.ok()) << status.message();

    const std::int64_t size = plain::size_of(element);
    std::int64_t written = 0, elements = 0, untouched = 0;
    for (Buffer& buffer : to.buffers) {
      buffer.fetch();
      elements += static_cast<std::int64_t>(buffer.bytes()) / size;
      untouched += buffer.untouched(size);
    }
    for (std::int64_t b = 0; sinks && b < sizes.batch; ++b)
      for (std::int64_t h = 0; h < x.heads; ++h)
        for (std::int64_t row = 0; row < side.rows_of(b); ++row)
          for (std::int64_t d = 0; d < x.width; ++d, ++written) {
            const double y = want[x.index(b, h, row, d)];
            // Terms of a row cancel to an extent.
            ASSERT_NEAR(to.stored(b, h, row, d), y, tolerance(element) * std::abs(y) + 2e-5)
                << "case " << n << " row " << row << " column " << d;
          }
    EXPECT_EQ(untouched, elements - written);
    dw.fetch();
    shares.fetch();
    for (int s = 0; weights && s < x.source.segments.count; ++s)
      for (std::size_t d = 0; d < width; ++d) {
        const double y = dweights[static_cast<std::size_t>(s) * width + d];
        const std::size_t at = static_cast<std::size_t>(s) * width * 8;
        const double got = load_element(dw.as<char>() + at, dtype_of(weight_element),
                                        static_cast<std::int64_t>(d));
        ASSERT_NEAR(got, y, tolerance(weight_element) * std::abs(y) + 1e-4)
            << "case " << n << " segment " << s << " column " << d;
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Finish, ::testing::Range<std::uint64_t>(1, 11));

TEST(FinishNan, a_row_of_zeros_stays_zero_whatever_the_input_holds) {
  Random random(3);
  const Side side = random_side(random, 1, 1, 2, false, false);
  Operand x = random_operand(random, side, 16, {});
  x.buffers[0].set(Element::f32, x.places[x.index(0, 0, 0, 3)], NAN);
  x.buffers[0].send();
  FinishArgs args;
  args.input = x.source;
  args.input.prologue.norm = true;
  args.space = side.space;
  args.padded = 16;
  Buffer sums = buffer_of(std::vector<float>(32, 0));
  sums.as<float>()[16 + 5] = NAN;
  sums.send();
  args.sums = sums.at<float>();
  Buffer to(32 * sizeof(float)), dw(16 * sizeof(float)), shares(finish_bytes(side.space, 16));
  for (Buffer* buffer : {&to, &dw, &shares}) buffer->send();
  args.sink.width = 16;
  args.sink.segments.count = 1;
  args.sink.segments.at[0] = {to.at<char>(), Element::f32, 0, 2, 0, 0, 16, 1};
  args.weights[0] = {dw.at<void>(), Element::f32, 1};
  args.shares = shares.at<float>();
  ASSERT_TRUE(finish(0, args, stream()).ok());
  to.fetch();
  dw.fetch();
  for (std::int64_t d = 0; d < 16; ++d) {
    EXPECT_EQ(to.get(Element::f32, d), 0);
    EXPECT_TRUE(std::isnan(to.get(Element::f32, 16 + d))) << d;
    EXPECT_EQ(std::isnan(dw.get(Element::f32, d)), d == 5) << d;
  }
}

}  // namespace
}  // namespace fovea::cuda
