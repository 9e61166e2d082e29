// The harness finds what it is there to find: planted faults in results that are right.
#include <cmath>

#include <gtest/gtest.h>

#include <fovea/plan.h>

#include "cases/numerics.h"
#include "cases/run_case.h"
#include "cases/sample.h"
#include "cases/work.h"

namespace fovea::cases {
namespace {

/// The reference's own results of a case, to be spoilt.
struct Spoilable {
  explicit Spoilable(const std::string& name, Direction which = Direction::forward)
      : prepared(parse_case(name).value(), 1), direction(which) {
    const Inputs& inputs = prepared.inputs();
    PlanOptions options;
    options.self_check = false;
    if (direction == Direction::forward) {
      options.choice.kernel = "cpu.reference.forward";
      results = make_forward_outputs(inputs, Width::as_asked);
      const ForwardArgs args = forward_args(inputs, results);
      throw_if_error(Plan::make(args, options).value().run(args));
    } else {
      options.choice.kernel = "cpu.reference.backward";
      results = make_backward_outputs(inputs, Width::as_asked);
      const BackwardArgs args =
          backward_args(inputs, *prepared.saved("cpu.reference.backward").value(), results);
      throw_if_error(Plan::make(args, options).value().run(args));
    }
  }

  Comparison comparison(const std::string& tensor) {
    const PreparedCase::Expected& expected = prepared.expected(direction);
    const std::vector<ErrorSums> all =
        measure(prepared.inputs(), results, expected.oracle, expected.baseline,
                prepared.expected(Direction::forward).oracle);
    for (const ErrorSums& sums : all) {
      if (sums.tensor == tensor) return sums.compare(prepared.spec().compute());
    }
    ADD_FAILURE() << "no " << tensor;
    return {};
  }
  const Tensor& tensor(const std::string& name) { return results.find(name)->tensor; }

  PreparedCase prepared;
  Direction direction;
  Outputs results;
};

TEST(Harness, AcceptsWhatIsRight) {
  Spoilable run("b1_hq2_hkv2_q20_k30_d8_f32_causal");
  EXPECT_TRUE(run.comparison("out").ok());
  EXPECT_TRUE(run.comparison("lse").ok());
  EXPECT_EQ(run.results.stray_writes(), "");
}

TEST(Harness, FindsAWrongElement) {
  Spoilable run("b1_hq2_hkv2_q20_k30_d8_f32_causal");
  const Tensor& out = run.tensor("out");
  out.set({0, 1, 7, 3}, out.get({0, 1, 7, 3}) + 1e-3);
  EXPECT_FALSE(run.comparison("out").ok());
}

TEST(Harness, FindsAWrongLse) {
  Spoilable run("b1_hq2_hkv2_q20_k30_d8_f32");
  const Tensor& lse = run.tensor("lse");
  lse.set({0, 1, 7}, lse.get({0, 1, 7}) + 1e-4);
  EXPECT_FALSE(run.comparison("lse").ok());
}

TEST(Harness, FindsAnElementThatWasNotWritten) {
  Spoilable run("b1_hq2_hkv2_q20_k30_d8_bf16");
  run.tensor("out").set({0, 0, 3, 3}, std::nan(""));
  EXPECT_NE(run.comparison("out").violation, "");
}

TEST(Harness, FindsARowThatShouldBeZero) {
  Spoilable run("b1_hq2_hkv2_q40_k30_d8_f32_causal_br");
  run.tensor("out").set({0, 0, 2, 3}, 1e-30);
  EXPECT_NE(run.comparison("out").violation, "");
}

TEST(Harness, FindsAnLseThatShouldBeMinusInfinity) {
  Spoilable run("b1_hq2_hkv2_q40_k30_d8_f32_causal_br");
  run.tensor("lse").set({0, 0, 2}, -1e30);
  EXPECT_NE(run.comparison("lse").violation, "");
}

TEST(Harness, FindsAHiddenNaN) {
  Spoilable run("b1_hq2_hkv2_q20_k20_d8_f32_causal_nan_v");
  EXPECT_TRUE(run.comparison("out").ok());
  run.tensor("out").set({0, 0, 19, 0}, 0);
  EXPECT_NE(run.comparison("out").violation, "");
}

TEST(Harness, FindsAGradientOfAnUnseenKey) {
  Spoilable run("b1_hq2_hkv2_q20_k90_d8_f32_causal", Direction::backward);
  EXPECT_TRUE(run.comparison("dk").ok());
  run.tensor("dk").set({0, 0, 80, 0}, 1e-20);
  EXPECT_NE(run.comparison("dk").violation, "");
}

TEST(Harness, GradientsThatCancelMustBeZero) {
  Spoilable run("b1_hq2_hkv2_q5_k1_d64_f32", Direction::backward);
  EXPECT_TRUE(run.comparison("dq").ok());
  run.tensor("dq").set({0, 0, 0, 0}, 1e-7);
  EXPECT_NE(run.comparison("dq").violation, "");
}

TEST(Harness, ScaleZeroLeavesNoGradientAtAll) {
  Spoilable run("b1_hq2_hkv2_q5_k9_d64_f32_scale0", Direction::backward);
  EXPECT_TRUE(run.comparison("dq").ok());
  run.tensor("dq").set({0, 0, 0, 0}, 1e-20);
  EXPECT_FALSE(run.comparison("dq").ok());
}

TEST(Harness, FindsWritesIntoGapsAndAround) {
  Spoilable run("b1_hq2_hkv2_q20_k30_d8_f32_padded");
  EXPECT_EQ(run.results.stray_writes(), "");
  const Tensor& out = run.tensor("out");
  static_cast<float*>(out.view.data)[8] = 0;  // behind the first row
  EXPECT_NE(run.results.stray_writes(), "");

  Spoilable around("b1_hq2_hkv2_q20_k30_d8_f32");
  around.tensor("out").buffer->data()[-1] = std::byte{0};
  EXPECT_NE(around.results.stray_writes(), "");
}

TEST(Harness, FindsWritesToUnownedRows) {
  Spoilable run("b3_hq2_hkv2_q20_k30_d8_f32_varlen");
  EXPECT_EQ(run.results.stray_writes(), "");
  const Tensor& out = run.tensor("out");
  out.set({out.view.shape[0] - 1, 0, 0}, 0);
  EXPECT_NE(run.results.stray_writes(), "");
}

TEST(Harness, FindsWritesToInputs) {
  Spoilable run("b1_hq2_hkv2_q20_k30_d8_f32");
  EXPECT_TRUE(run.prepared.inputs().intact());
  run.prepared.inputs().operands.k[0].set({0, 0, 0, 0}, 5);
  EXPECT_FALSE(run.prepared.inputs().intact());
}

TEST(Harness, SampledRowsAreJudgedLikeAllRows) {
  for (const char* name :
       {"b2_hq4_hkv2_q120_k180_d16_f32", "b1_hq2_hkv2_q200_k150_d16_f32_causal",
        "b1_hq2_hkv2_q150_k250_d16_f32_window-br-33-31", "b1_hq2_hkv1_q190_k60_d16_f32_causal_br",
        "b1_hq2_hkv2_q90_k300_d16_f32_window-tl-5-9_mask-bool-11qk-random_dropout0.2",
        "b1_hq2_hkv2_q200_k200_d16_f32_causal_rope-il-half-s-all-f32"}) {
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      Spoilable run(name, direction);
      const Saved* saved =
          direction == Direction::forward ? nullptr : *run.prepared.saved("cpu.reference.backward");
      const auto sums = measure_samples(run.prepared.inputs(), run.results, saved, direction);
      ASSERT_TRUE(sums.ok()) << name << ": " << sums.status().message();
      EXPECT_FALSE(sums->empty()) << name;
      for (const ErrorSums& tensor : *sums) {
        const Comparison comparison = tensor.compare(DType::f32);
        EXPECT_TRUE(comparison.ok()) << name << " " << tensor.tensor << " " << comparison.error;
        EXPECT_GT(tensor.squared_norm, 0) << name << " " << tensor.tensor;
        EXPECT_LT(comparison.error, 1e-5) << name << " " << tensor.tensor;
      }
    }
  }
}

TEST(Harness, AYardstickThatIsNotFiniteAllowsNothing) {
  ErrorSums sums;
  sums.add({{}, 1}, 1.0, 1.0, HUGE_VAL);
  const Comparison comparison = sums.compare(DType::f32);
  EXPECT_TRUE(comparison.ok());
  EXPECT_EQ(comparison.baseline_error, 0);
}

TEST(Harness, ForwardOfNoKernelIsTheLibrarysChoice) {
  PreparedCase prepared(parse_case("b1_hq2_hkv2_q20_k30_d8_f32").value(), 1);
  reset_counters();
  ASSERT_TRUE(prepared.saved("").ok());
  ASSERT_EQ(counters().kernels.size(), 1u);
  EXPECT_NE(counters().kernels[0].kernel, "cpu.reference.forward");
  EXPECT_EQ(prepared.saved("cpu.nothing.backward").status().code(), StatusCode::invalid);
}

TEST(Harness, CountsTheVisiblePairs) {
  EXPECT_EQ(visible_pairs(parse_case("b2_hq3_hkv3_q4_k5_d8_f32").value()), 2 * 3 * 4 * 5);
  EXPECT_EQ(visible_pairs(parse_case("b1_hq1_hkv1_q4_k4_d8_f32_causal").value()), 10);
  EXPECT_EQ(visible_pairs(parse_case("b1_hq1_hkv1_q4_k6_d8_f32_causal_br").value()), 18);
  EXPECT_EQ(flops_of(parse_case("b1_hq1_hkv1_q4_k4_d8_dv2_f32").value(), Direction::forward),
            2.0 * 10 * 16);
}

}  // namespace
}  // namespace fovea::cases
