// Merging on the device: of the caller's parts against the CPU's merge, of splits against f64.
#include <limits>

#include "cpu/merge.h"
#include "cuda/merge.h"
#include "tests/cuda/prologues.h"

namespace fovea::cuda {
namespace {

using namespace test;

class Merge : public ::testing::TestWithParam<std::uint64_t> {};

/// A tensor of a public call, on the device and on the host.
struct PublicTensor {
  Buffer buffer;
  TensorView device, host;

  [[nodiscard]] static MutableTensorView writable(const TensorView& view) {
    MutableTensorView to(const_cast<void*>(view.data), view.dtype, {});
    to.rank = view.rank;
    to.shape = view.shape;
    to.strides = view.strides;
    return to;
  }
};
template <class Fill>
PublicTensor public_tensor(Random& random, DType dtype, const std::vector<std::int64_t>& shape,
                           Fill fill) {
  std::int64_t sizes[4] = {1, 1, 1, 1}, strides[4];
  const std::size_t lead = 4 - shape.size();
  for (std::size_t d = 0; d < shape.size(); ++d) sizes[lead + d] = shape[d];
  PublicTensor t;
  const std::int64_t elements = random_strides(random, chance(random, 40), sizes, strides);
  t.buffer = Buffer(static_cast<std::size_t>(elements) * 8);
  for (std::int64_t n = 0; n < elements; ++n) store_element(t.buffer.as<void>(), dtype, n, fill());
  t.buffer.send();
  t.host = TensorView(t.buffer.as<void>(), dtype, {});
  t.host.rank = static_cast<int>(shape.size());
  for (std::size_t d = 0; d < shape.size(); ++d) {
    t.host.shape[d] = shape[d];
    t.host.strides[d] = strides[lead + d];
  }
  t.device = t.host;
  t.device.data = t.buffer.at<void>();
  return t;
}

TEST_P(Merge, parts_come_to_what_the_cpu_makes_of_them) {
  Random random(GetParam());
  constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::f64};
  for (int n = 0; n < 10; ++n) {
    SCOPED_TRACE(n);
    const std::vector<std::int64_t> rows = {draw(random, 1, 2), draw(random, 1, 3),
                                            draw(random, 0, 70)};
    std::vector<std::int64_t> shape = rows;
    shape.push_back(draw(random, 1, chance(random, 10) ? 600 : 80));
    const auto type = [&] { return kTypes[draw(random, 0, 3)]; };
    const auto lse_type = [&] { return chance(random, 50) ? DType::f64 : DType::f32; };
    const bool hazards = chance(random, 50);
    const auto value = [&] { return hazards && chance(random, 2) ? NAN : normal(random); };
    const auto lse_value = [&] {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      if (chance(random, 25)) return -kInfinity;
      if (hazards && chance(random, 5)) return chance(random, 50) ? kInfinity : double{NAN};
      return 3 * normal(random);
    };
    std::vector<PublicTensor> outs, lses;
    std::vector<PartialResult> host, device;
    const std::int64_t count = chance(random, 10) ? kMostMergeParts : draw(random, 0, 5);
    for (std::int64_t p = 0; p < count; ++p) {
      outs.push_back(public_tensor(random, type(), shape, value));
      lses.push_back(public_tensor(random, lse_type(), rows, lse_value));
    }
    for (std::size_t p = 0; p < outs.size(); ++p) {
      outs[p].host.data = outs[p].buffer.as<void>();
      lses[p].host.data = lses[p].buffer.as<void>();
      host.push_back({outs[p].host, lses[p].host});
      device.push_back({outs[p].device, lses[p].device});
    }
    const auto nan = [] { return std::numeric_limits<double>::quiet_NaN(); };
    PublicTensor sinks = public_tensor(random, type(), {rows[1]}, lse_value);
    sinks.host.data = sinks.buffer.as<void>();
    PublicTensor want = public_tensor(random, type(), shape, nan);
    PublicTensor want_lse = public_tensor(random, lse_type(), rows, nan);
    PublicTensor got = want, got_lse = want_lse;
    want.host.data = want.buffer.as<void>();
    want_lse.host.data = want_lse.buffer.as<void>();
    const bool with_sinks = chance(random, 40), with_lse = chance(random, 80);
    const auto writable = PublicTensor::writable;
    ASSERT_TRUE(cpu::merge({host, with_sinks ? sinks.host : TensorView(), writable(want.host),
                            with_lse ? writable(want_lse.host) : MutableTensorView()})
                    .ok());
    const Status status =
        merge(0,
              {device, with_sinks ? sinks.device : TensorView(), writable(got.device),
               with_lse ? writable(got_lse.device) : MutableTensorView()},
              stream());
    ASSERT_TRUE(status.ok()) << status.message();
    got.buffer.fetch();
    got_lse.buffer.fetch();
    // Also of what lies between elements, where both are NaN as before.
    const auto compare = [](PublicTensor& a, PublicTensor& b) {
      const DType dtype = a.host.dtype;
      const std::size_t elements = a.buffer.bytes() / 8;
      for (std::size_t i = 0; i < elements; ++i) {
        const auto at = static_cast<std::int64_t>(i);
        const double x = load_element(a.buffer.as<void>(), dtype, at);
        const double y = load_element(b.buffer.as<void>(), dtype, at);
        if (std::isnan(x) || std::isinf(x))
          ASSERT_TRUE(x == y || (std::isnan(x) && std::isnan(y))) << i << ": " << x << " " << y;
        else
          // Sums in another order may round to the other side.
          ASSERT_NEAR(x, y,
                      (dtype == DType::f64    ? 1e-13
                       : dtype == DType::f32  ? 1.3e-7
                       : dtype == DType::bf16 ? 0.008
                                              : 0.001) *
                              std::abs(x) +
                          1e-13)
              << i;
      }
    };
    compare(want, got);
    compare(want_lse, got_lse);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Merge, ::testing::Range<std::uint64_t>(1, 9));

TEST(MergeParts, more_parts_than_fit_are_refused) {
  const std::vector<PartialResult> parts(kMostMergeParts + 1);
  const Status status = merge(0, {parts, {}, {}, {}}, stream());
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.message(), "[merge] at most 32 partial results on a CUDA device; got 33");
}

class Splits : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(Splits, rows_are_what_the_formulas_say) {
  Random random(GetParam());
  for (int n = 0; n < 10; ++n) {
    SCOPED_TRACE(n);
    const Sizes sizes = random_sizes(random);
    const bool packed = chance(random, 40);
    const Side side = random_side(random, sizes.batch, sizes.heads, sizes.rows, false, packed);
    OperandOptions options;
    options.segments = packed ? 1 : static_cast<int>(draw(random, 1, 3));
    options.aligned = chance(random, 40);
    options.element = random_element(random);
    Operand out = random_operand(random, side, sizes.width, options);
    poison(out);
    MergeSplitsArgs args;
    args.space = side.space;
    args.splits = static_cast<int>(chance(random, 20) ? draw(random, 30, 70) : draw(random, 1, 9));
    args.padded = sizes.padded;
    args.out = out.sink();
    args.keep_scale = 1.25f;
    const std::int64_t rows = side.space.array_rows();
    const auto all = static_cast<std::size_t>(rows * args.splits);
    Buffer sums(all * static_cast<std::size_t>(args.padded) * 4), maxima(all * 4), weights(all * 4);
    Buffer lse(static_cast<std::size_t>(rows) * 4);
    Vector sinks = random_vector(random, sizes.heads);
    if (chance(random, 50)) sinks.values[0] = -INFINITY;
    sinks.buffer.set(sinks.floats.element, 0, sinks.values[0]);
    sinks.buffer.send();
    const bool with_sinks = chance(random, 40);
    if (with_sinks) args.sinks = sinks.floats;
    std::vector<double> want(out.values.size()), want_lse(static_cast<std::size_t>(rows));
    for (std::int64_t b = 0; b < sizes.batch; ++b)
      for (std::int64_t h = 0; h < sizes.heads; ++h)
        for (std::int64_t row = 0; row < side.rows_of(b); ++row) {
          const std::int64_t at = side.space.place(side.place(b, h), row);
          const bool empty = chance(random, 15);
          double weight = 0;
          std::vector<double> o(static_cast<std::size_t>(sizes.width), 0);
          for (int s = 0; s < args.splits; ++s) {
            const std::int64_t place = at + s * rows;
            const bool none = empty || chance(random, 20);
            // A split that saw nothing may have left anything in O.
            const float m = none ? -INFINITY : static_cast<float>(4 * normal(random));
            const float l = none ? 0 : static_cast<float>(1 + std::abs(normal(random)));
            maxima.as<float>()[place] = m;
            weights.as<float>()[place] = l;
            if (none) continue;
            const double factor = std::exp(static_cast<double>(m));
            weight += factor * static_cast<double>(l);
            for (std::int64_t d = 0; d < sizes.width; ++d) {
              const auto x = static_cast<float>(normal(random));
              sums.as<float>()[place * args.padded + d] = x;
              o[static_cast<std::size_t>(d)] += factor * static_cast<double>(x);
            }
          }
          if (with_sinks) weight += std::exp(sinks.values[static_cast<std::size_t>(h)]);
          want_lse[static_cast<std::size_t>(at)] = std::log(weight);
          for (std::int64_t d = 0; d < sizes.width; ++d)
            want[out.index(b, h, row, d)] =
                weight == 0 ? 0 : 1.25 * o[static_cast<std::size_t>(d)] / weight;
        }
    for (Buffer* buffer : {&sums, &maxima, &weights, &lse}) buffer->send();
    args.sums = sums.at<float>();
    args.maxima = maxima.at<float>();
    args.weights = weights.at<float>();
    const std::int64_t head = packed ? side.space.total() : sizes.rows;
    args.lse = {lse.at<float>(), packed ? 0 : head * sizes.heads, head, 1, 0};
    const Status status = merge_splits(0, args, stream());
    ASSERT_TRUE(status.ok()) << status.message();
    lse.fetch();
    for (Buffer& buffer : out.buffers) buffer.fetch();
    for (std::int64_t b = 0; b < sizes.batch; ++b)
      for (std::int64_t h = 0; h < sizes.heads; ++h)
        for (std::int64_t row = 0; row < side.rows_of(b); ++row) {
          const std::int64_t at = side.space.place(side.place(b, h), row);
          const double y = want_lse[static_cast<std::size_t>(at)];
          const double got = lse.get(Element::f32, at);
          if (y == -INFINITY)
            ASSERT_EQ(got, y);
          else
            ASSERT_NEAR(got, y, 1e-6 * (1 + std::abs(y)));
          for (std::int64_t d = 0; d < sizes.width; ++d) {
            const double x = want[out.index(b, h, row, d)];
            ASSERT_NEAR(out.stored(b, h, row, d), x,
                        tolerance(options.element) * std::abs(x) + 3e-6);
          }
        }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Splits, ::testing::Range<std::uint64_t>(1, 9));

}  // namespace
}  // namespace fovea::cuda
