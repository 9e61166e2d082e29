// The oracle of a CUDA device against that of the CPU, which proves it. Both evaluate the formulas
// of contract/reference_formulas.h in f64, so what may differ is the order of some sums, and on a
// GPU the last place of exp, log and tanh:
//   f64 results      by 1e-12 of the tensor's largest element, or of 1 in the mask's gradient
//   f32, f16, bf16   by one unit in the last place besides, where the two f64 results lie on
//                    different sides of a rounding boundary
// and NaN and infinity not at all.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <fovea/fovea.h>

#include "cases/device_copies.h"
#include "cases/elements.h"
#include "cases/random_case.h"
#include "cases/run_case.h"

namespace fovea::cases {

inline constexpr double kOracleCloseness = 1e-12;

/// From 1 to the next number.
inline double epsilon_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 0x1p-23;
    case DType::f16:
      return 0x1p-10;
    case DType::bf16:
      return 0x1p-7;
    default:
      return 0;
  }
}

inline std::vector<double> elements(const Output& output) {
  std::vector<double> list;
  for_each_element(output.written, [&](std::int64_t offset, const Index&) {
    list.push_back(load(output.written.data, output.written.dtype, offset));
  });
  return list;
}

/// Empty, or the first element that differs by too much.
inline std::string difference(const Output& got, const Output& expected) {
  const std::vector<double> a = elements(got), b = elements(expected);
  // A mask that is constant along keys has a gradient of 0 by the formulas: what is left is noise.
  double largest = got.name == "dmask" ? 1 : 0;
  for (const double x : b)
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  for (std::size_t n = 0; n < b.size(); ++n) {
    if (a[n] == b[n] || (std::isnan(a[n]) && std::isnan(b[n]))) continue;
    const double limit =
        kOracleCloseness * largest + epsilon_of(got.written.dtype) * std::abs(b[n]);
    if (std::isfinite(b[n]) && std::abs(a[n] - b[n]) <= limit) continue;
    return got.name + "[" + std::to_string(n) + "]: " + testing::PrintToString(a[n]) + ", not " +
           testing::PrintToString(b[n]);
  }
  return "";
}

inline void expect_close(const std::string& name, const Outputs& got, const Outputs& expected) {
  EXPECT_EQ(got.stray_writes(), "") << name;
  for (std::size_t n = 0; n < expected.list.size(); ++n)
    EXPECT_EQ(difference(got.list[n], expected.list[n]), "") << name;
}

/// Runs both oracles on cases and compares what they write.
class OracleComparison {
 public:
  explicit OracleComparison(const Device& device) : device_(device) {}

  /// Cases that neither serves count as none.
  void add(const Case& c, Width width) {
    const std::string name = name_of(c);
    PreparedCase prepared(c, default_seed(c));
    const Inputs& inputs = prepared.inputs();
    const Outputs expected = make_forward_outputs(inputs, width);
    const Outputs got = make_forward_outputs(inputs, width);
    if (!run_trusted(forward_args(inputs, expected), "cpu.reference.forward").ok()) {
      EXPECT_FALSE(would_serve("cuda.reference.forward", c)) << name;
      return;
    }
    run(forward_args(inputs, got), "cuda.reference.forward", inputs, nullptr, got);
    expect_close(name, got, expected);
    ++forward;
    if (!would_serve("cpu.reference.backward", c)) {
      EXPECT_FALSE(would_serve("cuda.reference.backward", c)) << name;
      return;
    }
    // Neither reads them.
    const Saved saved{make_like_out(c, inputs.lengths, c.out_dtype()),
                      make_like_lse(c, inputs.lengths)};
    const Outputs gradients = make_backward_outputs(inputs, width);
    const Outputs expected_gradients = make_backward_outputs(inputs, width);
    throw_if_error(
        run_trusted(backward_args(inputs, saved, expected_gradients), "cpu.reference.backward"));
    run(backward_args(inputs, saved, gradients), "cuda.reference.backward", inputs, &saved,
        gradients);
    expect_close(name, gradients, expected_gradients);
    ++backward;
  }

  int forward = 0, backward = 0;  ///< cases compared

 private:
  /// On copies of the call's memory.
  template <class Args>
  void run(const Args& args, const std::string& kernel, const Inputs& inputs, const Saved* saved,
           const Outputs& outputs) {
    DeviceCopies copies(device_);
    for (const Buffer* buffer : buffers_read(inputs, saved)) throw_if_error(copies.add(*buffer));
    for (const Buffer* buffer : buffers_written(outputs)) throw_if_error(copies.add(*buffer));
    throw_if_error(run_trusted(copies.moved(args), kernel));
    throw_if_error(synchronize(device_));
    for (const Buffer* buffer : buffers_written(outputs))
      throw_if_error(copies.fetch(buffer->base()));
  }

  Device device_;
};

}  // namespace fovea::cases
