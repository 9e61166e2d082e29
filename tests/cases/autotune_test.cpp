// Trials of real kernels on memory of their own, whatever the layout.
#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>
#include <unistd.h>

#include <fovea/fovea.h>

#include "cases/run_case.h"

namespace fovea::cases {
namespace {

class RealTrials : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder = std::filesystem::temp_directory_path() / ("fovea_trials_" + std::to_string(getpid()));
    setenv("FOVEA_CACHE_DIR", folder.c_str(), 1);
    release_cached_memory();
  }
  void TearDown() override {
    unsetenv("FOVEA_CACHE_DIR");
    release_cached_memory();
    std::filesystem::remove_all(folder);
  }
  std::filesystem::path folder;
};

void expect_measured(const Result<Plan>& plan) {
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const Tuning& tuned = plan->report().tuned;
  if (tuned.note == "no other kernel serves") return;  // a machine with few instruction sets
  EXPECT_TRUE(tuned.measured) << tuned.note;
  EXPECT_EQ(tuned.note, "");
}

TEST_P(RealTrials, ForwardAndBackwardAreMeasured) {
  const Result<Case> spec = parse_case(GetParam());
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  PreparedCase prepared(*spec, default_seed(*spec));
  PlanOptions options;
  options.autotune = true;
  options.num_threads = 2;
  const Inputs& inputs = prepared.inputs();
  const Outputs forward = make_forward_outputs(inputs, Width::as_asked);
  expect_measured(Plan::make(forward_args(inputs, forward), options));
  const Saved saved{make_like_out(*spec, inputs.lengths, spec->out_dtype()),
                    make_like_lse(*spec, inputs.lengths)};
  const Outputs backward = make_backward_outputs(inputs, Width::as_asked);
  if (std::string_view(GetParam()).find("paged") == std::string_view::npos)
    expect_measured(Plan::make(backward_args(inputs, saved, backward), options));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, RealTrials,
    testing::Values(
        "b2_hq4_hkv2_q50_k70_d64_f32_causal_br_bshd", "b2_hq3_hkv3_q65_k65_d64_bf16_packed_qkv",
        "b2_hq4_hkv4_q50_k70_d64_f32_stride0_kv", "b4_hq2_hkv2_q60_k90_d32_f32_varlen_reversed",
        "b4_hq2_hkv2_q60_k90_d32_f32_varlen_seqused", "b2_hq4_hkv2_q40_k90_d64_f16_paged16_seqused",
        "b2_hq4_hkv2_q50_k70_d32_f32_mask-f32-b1qk-random_dmask",
        "b2_hq4_hkv2_q50_k70_d32_f32_dropout0.2_dropstreams_dropdevice",
        "b2_hq4_hkv2_q50_k70_d64_bf16_seg-2-3-1_qknorm_rope-il-half-s-all-f32_ropeoffs",
        "b2_hq4_hkv2_q50_k70_d32_f32_sinks_alibi-tl-h_dlse_dsinks",
        "b2_hq4_hkv2_q1_k70_d32_f16_last2", "b2_hq4_hkv2_q50_k70_d64_f32_unaligned"));

}  // namespace
}  // namespace fovea::cases
