// Cases of dense q, k and v: heads, strides, bands, scales, extreme logits, empty shapes.
#include "cases/table_rows.h"

namespace fovea::cases {
namespace {

constexpr TableRow kRows[] = {
    // Shapes that models have, shortened.
    {"b1_hq1_hkv1_q64_k64_d64_f32", "one_head"},
    {"b1_hq4_hkv4_q128_k128_d64_f32_causal", "gpt2"},
    {"b2_hq3_hkv3_q100_k100_d64_f32", "plain"},
    {"b1_hq8_hkv2_q96_k96_d128_f32_causal", "llama_gqa"},
    {"b2_hq8_hkv2_q129_k257_d64_f32_causal", "gqa_causal"},
    {"b1_hq2_hkv2_q300_k600_d32_f32", "several_tiles"},
    {"b1_hq1_hkv1_q520_k1030_d64_f32_causal_br", "several_key_blocks"},
    {"b1_hq1_hkv1_q33_k2100_d64_f32", "many_keys"},
    {"b1_hq1_hkv1_q2100_k33_d16_f32", "many_queries"},
    {"b70_hq3_hkv1_q3_k5_d8_f32", "many_small_heads"},
    {"b300_hq230_hkv1_q1_k2_d1_f32", "batch_times_heads_above_65535"},

    // Heads.
    {"b2_hq6_hkv3_q40_k50_d32_f32", "gqa_group_of_2"},
    {"b1_hq7_hkv1_q40_k50_d32_f32", "mqa"},
    {"b2_hq12_hkv4_q20_k70_d64_f32_causal_br", "gqa_group_of_3"},
    {"b1_hq16_hkv1_q5_k200_d64_f32_causal_br", "mqa_few_queries"},

    // One query: decoding.
    {"b1_hq8_hkv8_q1_k512_d64_f32", "one_query"},
    {"b3_hq8_hkv2_q1_k777_d128_f32", "one_query_gqa"},
    {"b1_hq4_hkv1_q1_k1500_d64_f32_causal_br", "one_query_causal"},
    {"b1_hq2_hkv2_q1_k300_d64_f32_causal", "one_query_top_left_sees_one_key"},
    {"b1_hq2_hkv2_q1_k1_d64_f32", "one_query_one_key"},
    {"b2_hq2_hkv2_q5_k1_d64_f32", "one_key"},

    // Causal, both anchors.
    {"b1_hq2_hkv2_q70_k70_d32_f32_causal_br", "square_causal"},
    {"b1_hq2_hkv2_q50_k130_d32_f32_causal", "causal_top_left"},
    {"b1_hq2_hkv2_q50_k130_d32_f32_causal_br", "causal_bottom_right"},
    {"b1_hq2_hkv2_q130_k50_d32_f32_causal", "q_longer_than_kv"},
    {"b1_hq2_hkv2_q130_k50_d32_f32_causal_br", "q_longer_than_kv"},
    {"b1_hq2_hkv1_q300_k7_d64_f32_causal_br", "q_longer_than_kv"},
    {"b1_hq1_hkv1_q257_k1_d16_f32_causal_br", "q_longer_than_kv"},

    // Windows.
    {"b1_hq2_hkv2_q90_k90_d32_f32_window-tl-0-0", "diagonal_only"},
    {"b1_hq2_hkv2_q90_k140_d32_f32_window-br-0-0", "diagonal_only"},
    {"b1_hq2_hkv2_q200_k200_d32_f32_window-tl-16-0", "sliding_window"},
    {"b1_hq4_hkv2_q200_k330_d64_f32_window-br-64-0", "sliding_window"},
    {"b1_hq2_hkv2_q200_k200_d32_f32_window-tl-7-9", "two_sided_window"},
    {"b1_hq2_hkv2_q150_k250_d32_f32_window-br-33-31", "two_sided_window"},
    {"b1_hq2_hkv2_q100_k200_d32_f32_window-tl-inf-50", "right_side_only"},
    {"b1_hq2_hkv2_q100_k200_d32_f32_window-br-inf-4", "right_side_only"},
    {"b1_hq2_hkv2_q100_k200_d32_f32_window-tl-20-inf", "left_side_only"},
    {"b1_hq2_hkv2_q100_k200_d32_f32_window-br-20-inf", "left_side_only"},
    {"b1_hq2_hkv2_q100_k120_d32_f32_window-tl-inf-inf", "unlimited_band"},
    {"b1_hq2_hkv2_q100_k120_d32_f32_window-tl-9223372036854775806-9223372036854775806",
     "saturating_band"},
    {"b1_hq2_hkv2_q100_k120_d32_f32_window-br-9223372036854775806-1", "saturating_band"},
    {"b1_hq2_hkv2_q130_k50_d32_f32_window-br-10-3", "window_and_q_longer_than_kv"},
    {"b1_hq2_hkv2_q300_k60_d32_f32_window-tl-5-5", "rows_past_the_keys"},
    {"b1_hq1_hkv1_q20_k600_d32_f32_window-tl-3-3", "keys_past_the_rows"},
    {"b1_hq1_hkv1_q600_k600_d32_f32_window-tl-100-100", "window_wider_than_a_tile"},

    // Strides.
    {"b2_hq4_hkv4_q50_k70_d64_f32_bshd", "bshd"},
    {"b2_hq4_hkv2_q50_k70_d40_f32_causal_bshd", "bshd"},
    {"b2_hq3_hkv3_q65_k65_d64_f32_packed_qkv", "packed_qkv"},
    {"b2_hq3_hkv3_q65_k65_d64_f32_causal_packed_qkv", "packed_qkv"},
    {"b2_hq4_hkv4_q50_k70_d64_f32_stride0_kv", "stride0_kv"},
    {"b2_hq8_hkv4_q50_k70_d40_f32_causal_br_stride0_kv", "stride0_kv"},
    {"b2_hq3_hkv3_q50_k70_d40_f32_padded", "odd_strides"},
    {"b2_hq3_hkv1_q50_k70_d33_f32_causal_br_padded", "odd_strides"},
    {"b2_hq3_hkv3_q50_k70_d64_f32_padded_unaligned", "unaligned"},
    {"b1_hq2_hkv2_q50_k70_d64_f32_unaligned", "unaligned"},
    {"b2_hq2_hkv2_q40_k60_d64_f32_last2", "last_stride_2"},
    {"b2_hq2_hkv1_q40_k60_d64_f32_causal_last2", "last_stride_2"},
    {"b2_hq2_hkv2_q40_k60_d64_f32_reversed", "negative_strides"},
    {"b2_hq2_hkv1_q40_k60_d64_f32_causal_br_reversed", "negative_strides"},
    {"b1_hq2_hkv2_q20_k30_d64_f32_wide", "offsets_above_2_31"},
    {"b1_hq2_hkv1_q20_k30_d64_f32_causal_br_wide", "offsets_above_2_31"},

    // Scales and logits.
    {"b1_hq2_hkv2_q50_k70_d64_f32_scale0", "scale0"},
    {"b1_hq2_hkv2_q50_k70_d64_f32_scale-0.125", "negative_scale"},
    {"b1_hq2_hkv2_q50_k70_d64_f32_causal_br_scale-1", "negative_scale"},
    {"b1_hq2_hkv2_q50_k70_d64_f32_scale1e-06", "tiny_scale"},
    {"b1_hq2_hkv2_q50_k70_d64_f32_causal_scale1e-30", "tiniest_scale"},
    {"b1_hq2_hkv2_q50_k70_d64_f32_std16", "large_logits"},
    {"b1_hq2_hkv2_q100_k700_d64_f32_std64", "huge_logits"},
    {"b1_hq2_hkv2_q100_k200_d64_f32_causal_std64", "huge_logits"},
    {"b1_hq2_hkv2_q50_k70_d64_f32_scale3_std1000", "logits_of_thousands"},
    {"b1_hq3_hkv3_q78_k1_d352_f32", "one_key_wide_head"},
    {"b1_hq2_hkv2_q50_k70_d64_f32_std0", "equal_logits"},

    // Non-finite values reach those that see them, and nobody else.
    {"b1_hq2_hkv2_q50_k70_d32_f32_causal_nan_v", "nan_v"},
    {"b1_hq2_hkv2_q50_k70_d32_f32_window-br-9-4_nan_v", "nan_v"},
    {"b3_hq2_hkv1_q45_k37_d72_bf16_causal_mask-f32-b11k-lowest_sinks_nan_v",
     "nan_v_without_weight"},
    {"b1_hq2_hkv2_q50_k70_d32_f32_causal_inf_k", "inf_k"},
    {"b1_hq2_hkv2_q50_k70_d32_f32_causal_inf_dout", "inf_dout"},

    // Nothing to do, or nothing to see.
    {"b0_hq2_hkv2_q10_k20_d32_f32", "empty_batch"},
    {"b2_hq2_hkv2_q0_k20_d32_f32", "empty_q"},
    {"b2_hq2_hkv2_q10_k0_d32_f32", "empty_kv"},
    {"b2_hq2_hkv1_q10_k0_d32_f32_causal_br", "empty_kv"},
    {"b2_hq2_hkv2_q0_k0_d32_f32_causal", "empty_q_and_kv"},

    // What is asked for.
    {"b1_hq2_hkv2_q50_k70_d64_f32_nolse", "no_lse"},
    {"b1_hq2_hkv1_q50_k70_d64_f32_causal_nodq", "no_dq"},
    {"b1_hq2_hkv1_q50_k70_d64_f32_causal_nodk", "no_dk"},
    {"b1_hq2_hkv1_q50_k70_d64_f32_causal_nodv", "no_dv"},
    {"b1_hq2_hkv1_q50_k70_d64_f32_nodk_nodv", "dq_only"},
    {"b1_hq2_hkv1_q50_k70_d64_f32_nodq_nodk", "dv_only"},
    {"b1_hq4_hkv2_q50_k70_d64_f32_causal_dlse", "dlse"},
    {"b1_hq4_hkv2_q50_k70_d64_f32_causal_nodout_dlse", "dlse_alone"},
    {"b1_hq4_hkv2_q50_k70_d64_f32_causal_dout0", "expanded_dout"},
    {"b1_hq2_hkv2_q90_k40_d32_f32_causal_br_dlse", "dlse_of_rows_that_see_nothing"},
};

}  // namespace

const std::span<const TableRow> kDenseRows{kRows};

}  // namespace fovea::cases
