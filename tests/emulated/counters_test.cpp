// What CUDA kernels report of operands that they copy and masks that they need not read.
#include <gtest/gtest.h>

#include <fovea/fovea.h>

#include "cases/device_copies.h"
#include "cases/outputs.h"
#include "emulated_device.h"

namespace fovea::cases {
namespace {

class EmulatedCounters : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(asked_for_emulation);
    if (!is_emulated(kEmulated)) GTEST_SKIP() << "this build emulates no device";
    reset_counters();
  }
};

/// Runs forward and backward of a case; the emulated device takes tensors where they are.
struct Reports {
  Report forward, backward;
};
Reports run_on(const Device& device, const std::string& name) {
  const Case spec = parse_case(name).value();
  const std::unique_ptr<Inputs> inputs = make_inputs(spec, 1);
  const Outputs out = make_forward_outputs(*inputs, Width::as_asked);
  Reports reports;
  throw_if_error(forward(as_on(device, forward_args(*inputs, out)), {}, &reports.forward));
  Saved saved{make_like_out(spec, inputs->lengths, spec.out_dtype()),
              make_like_lse(spec, inputs->lengths)};
  saved.out[0] = out.find("out")->tensor;
  saved.lse = out.find("lse")->tensor;
  const Outputs gradients = make_backward_outputs(*inputs, Width::as_asked);
  throw_if_error(
      backward(as_on(device, backward_args(*inputs, saved, gradients)), {}, &reports.backward));
  throw_if_error(synchronize(device));
  return reports;
}

TEST_F(EmulatedCounters, CopiesOfOperandsThatNoKernelReadsInPlace) {
  const Reports strided = run_on(kEmulated, "b1_hq2_hkv2_q20_k30_d16_f32_last2");
  EXPECT_EQ(strided.forward.kernel, "cuda.sm80.forward");
  EXPECT_EQ(strided.forward.staged_copies, 3) << "q, k, v";
  EXPECT_EQ(strided.backward.staged_copies, 4) << "and dout";
  EXPECT_EQ(counters().staged_copies, 7u);
  const Reports rotated = run_on(kEmulated, "b1_hq2_hkv2_q20_k30_d16_f32_rope-il-half-s-all-f32");
  EXPECT_EQ(rotated.forward.staged_copies, 2) << "q, k";
  EXPECT_EQ(counters().staged_copies, 11u);

  reset_counters();
  EXPECT_EQ(run_on(kEmulated, "b1_hq2_hkv2_q20_k30_d16_f32").forward.staged_copies, 0);
  EXPECT_EQ(run_on({}, "b1_hq2_hkv2_q20_k30_d16_f32_last2").forward.staged_copies, 0)
      << "the CPU copies no whole operand";
  EXPECT_EQ(counters().staged_copies, 0u);
}

TEST_F(EmulatedCounters, TilesOfMasksThatHideNothing) {
  // Two tiles of rows, three of keys, and one head for all.
  run_on(kEmulated, "b1_hq2_hkv2_q70_k130_d16_f32_mask-bool-11qk-ones");
  EXPECT_EQ(counters().mask_tiles_skipped, 12u) << "forward and backward";
  EXPECT_EQ(counters().mask_tiles_skipped, 12u) << "counted once";
  reset_counters();
  run_on(kEmulated, "b1_hq2_hkv2_q70_k130_d16_f32_mask-bool-11qk-random");
  run_on({}, "b1_hq2_hkv2_q70_k130_d16_f32_mask-bool-11qk-ones");
  EXPECT_EQ(counters().mask_tiles_skipped, 0u);
  EXPECT_NE(counters_json().find("\"mask_tiles_skipped\":0,"), std::string::npos);
}

}  // namespace
}  // namespace fovea::cases
