// cuda.reference against cpu.reference: the oracle of the GPU is proved by that of the CPU. Both
// evaluate the formulas of contract/reference_formulas.h in f64, so what may differ is the order of
// some sums:
//   f64 results      by 1e-12 of the tensor's largest element, or of 1 in the mask's gradient
//   f32, f16, bf16   by one unit in the last place besides, where the two f64 results lie on
//                    different sides of a rounding boundary
// and NaN and infinity not at all. On a GPU, exp, log and tanh are the device's own.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <fovea/fovea.h>

#include "cases/device_copies.h"
#include "cases/elements.h"
#include "cases/random_case.h"
#include "cases/run_case.h"
#include "cases/work.h"
#include "emulated_device.h"
#include "small_cases.h"

namespace fovea::cases {
namespace {

constexpr double kCloseness = 1e-12;

/// From 1 to the next number.
double epsilon_of(DType dtype) {
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

std::vector<double> elements(const Output& output) {
  std::vector<double> list;
  for_each_element(output.written, [&](std::int64_t offset, const Index&) {
    list.push_back(load(output.written.data, output.written.dtype, offset));
  });
  return list;
}

/// Empty, or the first element that differs by too much.
std::string difference(const Output& got, const Output& expected) {
  const std::vector<double> a = elements(got), b = elements(expected);
  // A mask that is constant along keys has a gradient of 0 by the formulas: what is left is noise.
  double largest = got.name == "dmask" ? 1 : 0;
  for (const double x : b)
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  for (std::size_t n = 0; n < b.size(); ++n) {
    if (a[n] == b[n] || (std::isnan(a[n]) && std::isnan(b[n]))) continue;
    const double limit = kCloseness * largest + epsilon_of(got.written.dtype) * std::abs(b[n]);
    if (std::isfinite(b[n]) && std::abs(a[n] - b[n]) <= limit) continue;
    return got.name + "[" + std::to_string(n) + "]: " + testing::PrintToString(a[n]) + ", not " +
           testing::PrintToString(b[n]);
  }
  return "";
}

void compare(const std::string& name, const Outputs& got, const Outputs& expected) {
  EXPECT_EQ(got.stray_writes(), "") << name;
  for (std::size_t n = 0; n < expected.list.size(); ++n)
    EXPECT_EQ(difference(got.list[n], expected.list[n]), "") << name;
}

class EmulatedReference : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(asked_for_emulation);
    if (!is_emulated(kEmulated)) GTEST_SKIP() << "this build emulates no device";
  }

  /// Runs both oracles on a case and compares what they write. Cases that neither serves are none.
  void compare_on(const Case& c, Width width) {
    const std::string name = name_of(c);
    PreparedCase prepared(c, default_seed(c));
    const Inputs& inputs = prepared.inputs();
    const Outputs expected = make_forward_outputs(inputs, width);
    const Outputs got = make_forward_outputs(inputs, width);
    if (!run_trusted(forward_args(inputs, expected), "cpu.reference.forward").ok()) {
      EXPECT_FALSE(would_serve("cuda.reference.forward", c)) << name;
      return;
    }
    run_emulated(forward_args(inputs, got), "cuda.reference.forward", name);
    compare(name, got, expected);
    ++forward_;
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
    run_emulated(backward_args(inputs, saved, gradients), "cuda.reference.backward", name);
    compare(name, gradients, expected_gradients);
    ++backward_;
  }

  int forward_ = 0, backward_ = 0;

 private:
  template <class Args>
  static void run_emulated(const Args& args, const std::string& kernel, const std::string& name) {
    // The emulated device takes tensors where they are.
    const Status status = run_trusted(as_on(kEmulated, args), kernel);
    ASSERT_TRUE(status.ok()) << name << ": " << status.message();
    throw_if_error(synchronize(kEmulated));
  }
};

/// By the number of products, one after the other.
std::vector<const TableEntry*> cases_of_little_work() {
  const auto work = [](const Case& c) { return flops_of(c, Direction::forward); };
#if defined(__SANITIZE_ADDRESS__)
  return small_cases(work, 3e5, 3e6);  // several times as slow
#else
  return small_cases(work, 1e6, 1e7);
#endif
}

TEST_F(EmulatedReference, CasesOfTheTableInF64) {
  std::set<std::string> done;
  for (const TableEntry* entry : cases_of_little_work()) {
    const std::optional<Case> wide = with_dtype(entry->spec, DType::f64);
    if (wide && done.insert(name_of(*wide)).second) compare_on(*wide, Width::widest);
  }
  std::cout << forward_ << " forward, " << backward_ << " backward\n";
  EXPECT_GE(forward_, 150);
  EXPECT_GE(backward_, 140);
}

/// Parameters that f32 does not hold, where they count.
TEST_F(EmulatedReference, ParametersInF64) {
  for (const char* name : {"b2_hq4_hkv2_q20_k37_d24_dv40_f64_scale0.3_softcap2.3",
                           "b2_hq2_hkv1_q5_k37_d8_f64_qknorm_std0.0001_dnorm"})
    compare_on(parse_case(name).value(), Width::widest);
  EXPECT_EQ(backward_, 2);
}

/// Everything together.
TEST_F(EmulatedReference, RandomCases) {
#if defined(__SANITIZE_ADDRESS__)
  constexpr std::uint64_t kCases = 10;
#else
  constexpr std::uint64_t kCases = 30;
#endif
  for (std::uint64_t seed = 1; seed <= kCases; ++seed) {
    const Case c = random_case(seed, whole_scope());
    const std::optional<Case> wide = with_dtype(c, DType::f64);
    if (wide && seed % 2 == 0)
      compare_on(*wide, Width::widest);
    else
      compare_on(c, Width::as_asked);
  }
  std::cout << forward_ << " forward, " << backward_ << " backward\n";
  EXPECT_GE(backward_, static_cast<int>(kCases) / 2);
}

/// What f64 does not have: roundings of operands and results, inputs of several dtypes, tf32.
TEST_F(EmulatedReference, CasesOfTheTableInOtherDtypesThanF32) {
  for (const TableEntry* entry : cases_of_little_work()) {
    const Case& c = entry->spec;
    const bool plain = c.q_dtype == DType::f32 && c.k_dtype == DType::f32 &&
                       c.v_dtype == DType::f32 && c.cast == DType::none && !c.tf32;
    if (!plain) compare_on(c, Width::as_asked);
  }
  std::cout << forward_ << " forward, " << backward_ << " backward\n";
  EXPECT_GE(forward_, 20);
  EXPECT_GE(backward_, 20);
}

}  // namespace
}  // namespace fovea::cases
