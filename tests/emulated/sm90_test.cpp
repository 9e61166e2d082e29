// cuda.sm90 kernels on an emulated sm_90, a run of its own (FOVEA_CUDA_ARCH=90): cases of several
// tiles of queries and blocks of keys, and cases of the table in 16 bits.
#include <cstdlib>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <fovea/fovea.h>

#include "../cases/oracles.h"
#include "../cases/tally.h"
#include "cases/device_copies.h"
#include "cases/table.h"
#include "cases/work.h"
#include "emulated_device.h"
#include "small_cases.h"

namespace fovea::cases {
namespace {

constexpr const char* kForward = "cuda.sm90.forward";
constexpr const char* kBackward = "cuda.sm90.backward";

const char* const kSeveralTiles[] = {
    "b1_hq1_hkv1_q1_k1_d64_bf16",
    "b2_hq4_hkv2_q300_k500_d64_bf16_causal_br",
    "b1_hq2_hkv1_q500_k300_d64_f16_causal",
    "b1_hq2_hkv1_q500_k300_d64_bf16_causal_br",
    "b1_hq2_hkv2_q700_k700_d128_bf16_window-br-100-30",
    "b1_hq2_hkv2_q400_k400_d64_f16_window-tl-20-inf",
    "b1_hq2_hkv1_q300_k300_d128_bf16_causal_nan_v",
    "b1_hq2_hkv2_q300_k400_d64_f16_window-br-200-100_nan_v",
    "b1_hq2_hkv2_q300_k300_d64_bf16_causal_inf_k",
    "b3_hq4_hkv2_q200_k300_d64_bf16_varlen",
    "b3_hq4_hkv1_q300_k300_d128_f16_varlen_causal_br",
    "b3_hq2_hkv2_q200_k300_d128_bf16_seqused_causal",
    "b2_hq3_hkv3_q200_k200_d128_bf16_sinks",
    "b2_hq4_hkv4_q260_k260_d96_dv40_f16_causal",
    "b2_hq4_hkv4_q260_k260_d40_dv120_bf16",
    "b2_hq4_hkv4_q130_k260_d64_bf16_bshd_causal",
    "b2_hq4_hkv4_q200_k200_d128_bf16_packed_qkv",
    "b2_hq4_hkv4_q150_k150_d128_bf16_stride0_kv",
    "b1_hq2_hkv2_q150_k150_d128_f16_padded",
    "b1_hq2_hkv2_q150_k150_d128_bf16_last2",
    "b1_hq2_hkv2_q300_k600_d128_bf16_std64",
    "b1_hq2_hkv2_q300_k600_d64_f16_std64",
    "b1_hq2_hkv2_q300_k600_d128_bf16_std1000_causal",
    "b1_hq2_hkv2_q200_k300_d128_f16_std16_f32out",
    "b1_hq2_hkv2_q200_k300_d64_bf16_nolse",
    "b2_hq2_hkv2_q20_k30_d64_bf16_seg-2-3-1",
    "b1_hq2_hkv2_q200_k300_d72_bf16_rope-il-half-s-all-f32_qknorm",
    "b2_hq2_hkv2_q150_k130_d64_bf16_outseg2",
    "b1_hq3_hkv1_q1000_k1000_d64_bf16_causal",
    "b1_hq1_hkv1_q520_k1100_d128_bf16_causal_br",
    "b1_hq2_hkv2_q200_k300_d61_bf16_padded",
    "b1_hq2_hkv2_q200_k300_d64_dv5_f16_padded",
    "b4_hq2_hkv2_q200_k300_d61_bf16_varlen_padded",
    "b5_hq4_hkv2_q200_k300_d128_bf16_varlen_seqused_causal_br_sinks-some_nan_v",
    "b3_hq2_hkv2_q200_k300_d64_f16_seqused_window-br-50-20_inf_k",
};

const char* const kSeveralTilesOfKeys[] = {
    "b1_hq1_hkv1_q1_k1_d64_bf16",
    "b2_hq4_hkv2_q200_k300_d64_bf16",
    "b2_hq4_hkv2_q200_k300_d128_bf16_causal_br",
    "b3_hq4_hkv4_q150_k400_d64_f16_causal",
    "b1_hq2_hkv2_q300_k300_d128_bf16_window-br-100-30",
    "b1_hq2_hkv2_q200_k200_d64_f16_window-tl-20-inf",
    "b1_hq2_hkv1_q200_k200_d128_bf16_causal_nan_v",
    "b1_hq2_hkv2_q200_k250_d64_f16_window-br-100-50_inf_dout",
    "b1_hq2_hkv2_q200_k200_d64_bf16_causal_inf_k",
    "b3_hq4_hkv2_q100_k200_d64_bf16_varlen",
    "b3_hq4_hkv1_q200_k200_d128_f16_varlen_causal_br",
    "b3_hq2_hkv2_q100_k200_d128_bf16_seqused_causal",
    "b2_hq3_hkv3_q100_k100_d128_bf16_sinks_dsinks",
    "b2_hq4_hkv4_q160_k160_d96_dv40_f16_causal",
    "b2_hq4_hkv4_q130_k160_d40_dv120_bf16",
    "b1_hq2_hkv2_q150_k150_d128_bf16_last2",
    "b1_hq2_hkv2_q150_k300_d128_bf16_std64",
    "b1_hq2_hkv2_q100_k150_d64_f16_f32grads",
    "b2_hq2_hkv2_q20_k30_d64_bf16_seg-2-3-1",
    "b1_hq2_hkv2_q100_k150_d72_bf16_rope-il-half-s-all-f32_qknorm",
    "b2_hq2_hkv2_q150_k130_d64_bf16_dlse_nodq",
    "b2_hq2_hkv2_q150_k130_d61_bf16_nodk_nodv_padded",
};

class EmulatedSm90 : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(asked_for_emulation);
    const char* arch = std::getenv("FOVEA_CUDA_ARCH");
    if (arch == nullptr || std::string(arch) != "90") GTEST_SKIP() << "not FOVEA_CUDA_ARCH=90";
    if (!is_emulated(kEmulated)) GTEST_SKIP() << "this build emulates no device";
  }
};

/// Runs the cases that take no more work than `most`, all of which the kernel is to serve.
void run_all(const char* kernel, std::span<const char* const> names, double most) {
  Tally tally(" --emulate");
  std::int64_t count = 0;
  for (const char* name : names) {
    const Case spec = parse_case(name).value();
    if (tiled_flops_of(spec) > most) continue;
    PreparedCase prepared(spec, default_seed(spec));
    tally.add(kernel, name, run_case(prepared, kernel));
    ++count;
  }
  tally.print();
  EXPECT_EQ(tally.executed(kernel), count);
}

#if defined(__SANITIZE_ADDRESS__)
constexpr double kMostWork = 1e8, kMostForwardOfTable = 5e6, kMostBackwardOfTable = 2e6;
constexpr int kFewestOfTable = 20;
#else
constexpr double kMostWork = 1e12, kMostForwardOfTable = 3e7, kMostBackwardOfTable = 4e6;
constexpr int kFewestOfTable = 60;
#endif

TEST_F(EmulatedSm90, CasesOfSeveralTiles) { run_all(kForward, kSeveralTiles, kMostWork); }
TEST_F(EmulatedSm90, CasesOfSeveralTilesOfKeys) {
  run_all(kBackward, kSeveralTilesOfKeys, kMostWork);
}

// A plan is kept for calls like its own: also in which tensors the copy engine can read.
TEST_F(EmulatedSm90, CallsThatDifferInWhichTensorIsUnaligned) {
  constexpr std::int64_t kRows = 40, kDim = 64;
  constexpr std::size_t kElements = kRows * kDim;
  const std::vector<std::uint16_t> zeros(5 * (kElements + 8));
  DeviceBuffer memory = DeviceBuffer::make(kEmulated, zeros.size() * 2).value();
  ASSERT_TRUE(memory.upload(zeros.data(), zeros.size() * 2).ok());
  const auto call = [&](std::size_t q_shift, std::size_t lse_shift) {
    const auto at = [&](std::size_t n) {
      return static_cast<std::uint16_t*>(memory.data()) + n * (kElements + 8);
    };
    ForwardArgs args;
    args.params.q = bhsd(at(0) + q_shift, DType::bf16, 1, 1, kRows, kDim, kEmulated);
    args.params.k = bhsd(at(1), DType::bf16, 1, 1, kRows, kDim, kEmulated);
    args.params.v = bhsd(at(2), DType::bf16, 1, 1, kRows, kDim, kEmulated);
    args.out = bhsd(at(3), DType::bf16, 1, 1, kRows, kDim, kEmulated);
    args.lse = MutableTensorView(at(4) + lse_shift, DType::f32, {1, 1, kRows}, kEmulated);
    Report report;
    const Status status = forward(args, {}, &report);
    return status.ok() ? report.kernel : status.message();
  };
  EXPECT_EQ(call(0, 2), kForward);
  EXPECT_EQ(call(1, 0), "cuda.sm80.forward");
  EXPECT_EQ(call(0, 0), kForward);
}

/// Cases of the table, in both 16-bit dtypes.
void run_table(const char* kernel, double most) {
  Tally tally(" --emulate");
  std::set<std::string> done;
  for (const TableEntry& entry : table()) {
    if (tiled_flops_of(entry.spec) > most) continue;
    // In f16, gradients at such logits have no digits (known gaps).
    if (kernel == kBackward && entry.spec.logits_std >= 1000) continue;
    for (const DType dtype : {DType::bf16, DType::f16}) {
      const std::optional<Case> spec = with_dtype(entry.spec, dtype);
      if (!spec || !done.insert(name_of(*spec)).second) continue;
      PreparedCase prepared(*spec, default_seed(*spec));
      tally.add(kernel, name_of(*spec), run_case(prepared, kernel));
    }
  }
  tally.print();
  EXPECT_GE(tally.executed(kernel), kFewestOfTable);
}

TEST_F(EmulatedSm90, CasesOfTheTableIn16Bits) { run_table(kForward, kMostForwardOfTable); }
TEST_F(EmulatedSm90, CasesOfTheTableIn16BitsBackward) {
  run_table(kBackward, kMostBackwardOfTable);
}

}  // namespace
}  // namespace fovea::cases
