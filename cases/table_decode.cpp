// Cases of decoding: few queries over many keys, whose work is split along the keys.
#include "cases/table_rows.h"

namespace fovea::cases {
namespace {

constexpr TableRow kRows[] = {
    // Heads: the query heads of one KV head go together.
    {"b2_hq4_hkv4_q1_k1025_d128_f32", "decode_group_of_1"},
    {"b2_hq8_hkv2_q1_k1025_d128_f32_causal_br", "decode_group_of_4"},
    {"b1_hq16_hkv2_q1_k700_d128_bf16", "decode_group_of_8"},
    {"b1_hq10_hkv2_q1_k700_d64_f16", "decode_group_of_5"},
    {"b1_hq7_hkv1_q3_k300_d64_f32_causal_br", "decode_group_of_7"},
    {"b1_hq71_hkv1_q1_k200_d64_f32", "decode_mqa"},
    {"b1_hq8_hkv1_q16_k200_d64_f32_causal_br", "decode_most_rows"},
    {"b1_hq8_hkv1_q17_k200_d64_f32_causal_br", "decode_more_queries_than_that"},
    {"b1_hq129_hkv1_q1_k65_d32_f32", "decode_more_rows_than_that"},

    // Lengths around the chunks and tiles of the split.
    {"b1_hq1_hkv1_q1_k63_d64_f32", "decode_less_than_a_tile"},
    {"b1_hq1_hkv1_q1_k64_d64_f32", "decode_one_tile"},
    {"b1_hq1_hkv1_q1_k128_d64_f32", "decode_one_chunk"},
    {"b1_hq1_hkv1_q1_k129_d64_f32", "decode_one_key_in_the_last_chunk"},
    {"b1_hq2_hkv1_q2_k4099_d64_bf16_causal_br", "decode_many_chunks"},
    {"b2_hq2_hkv1_q1_k16500_d16_f32", "decode_long_chunks"},
    {"b2_hq2_hkv2_q4_k3_d64_f32_causal_br", "decode_rows_that_see_nothing"},

    // Head dims that are no whole vectors, in every dtype.
    {"b1_hq2_hkv1_q1_k150_d1_f32", "decode_d1"},
    {"b1_hq2_hkv1_q1_k150_d7_bf16", "decode_odd_d_in_pairs"},
    {"b1_hq2_hkv1_q2_k150_d40_bf16", "decode_d40"},
    {"b1_hq2_hkv1_q1_k150_d72_f16", "decode_d72"},
    {"b1_hq4_hkv1_q1_k150_d80_bf16", "decode_d80"},
    {"b1_hq2_hkv1_q3_k150_d100_f32", "decode_d100"},
    {"b1_hq2_hkv1_q1_k150_d192_dv128_bf16", "decode_d192_dv128"},
    {"b1_hq2_hkv1_q1_k150_d512_dv70_f16", "decode_d512"},
    {"b1_hq2_hkv1_q2_k150_d66_dv511_f32", "decode_dv511"},

    // Where K and V lie.
    {"b2_hq4_hkv2_q1_k300_d64_bf16_bshd", "decode_bshd"},
    {"b2_hq4_hkv2_q2_k300_d64_f16_padded_unaligned", "decode_unaligned"},
    {"b2_hq4_hkv2_q1_k300_d64_bf16_last2", "decode_last_stride_2"},
    {"b2_hq4_hkv2_q2_k300_d64_f32_reversed", "decode_negative_strides"},
    {"b2_hq4_hkv4_q1_k300_d64_bf16_stride0_kv", "decode_stride0_kv"},
    {"b2_hq4_hkv2_q2_k300_d64_bf16_seg-2-3-4", "decode_segments"},
    {"b1_hq2_hkv1_q2_k300_d64_f32-f16-bf16_cast-f32", "decode_mixed_dtypes"},
    {"b1_hq2_hkv1_q2_k300_d64_bf16-f32-f16_cast-bf16", "decode_staged_by_a_cast"},

    // Ragged lengths and pages.
    {"b4_hq8_hkv2_q1_k900_d64_bf16_causal_br_seqused", "decode_seqused"},
    {"b4_hq4_hkv2_q3_k500_d64_f32_causal_br_varlen_seqused", "decode_varlen"},
    {"b3_hq8_hkv2_q1_k900_d128_bf16_causal_br_seqused_paged64", "decode_paged"},
    {"b3_hq8_hkv2_q4_k300_d64_f16_causal_br_seqused_paged16", "decode_paged_speculative"},
    {"b3_hq4_hkv2_q2_k200_d64_f32_seqused_paged3", "decode_pages_that_split_tiles"},
    {"b3_hq4_hkv1_q1_k300_d64_bf16_causal_br_seqused_paged256", "decode_pages_longer_than_tiles"},

    // Bands that leave little of the cache.
    {"b1_hq4_hkv2_q1_k1500_d64_f32_window-br-100-0", "decode_sliding_window"},
    {"b1_hq4_hkv2_q4_k1500_d64_bf16_window-br-129-0", "decode_sliding_window"},
    {"b1_hq2_hkv1_q4_k1500_d64_f32_window-tl-10-70", "decode_window_at_the_start"},
    {"b2_hq4_hkv2_q4_k300_d64_f32_causal_br_nan_v", "decode_nan_v"},
    {"b2_hq4_hkv2_q4_k300_d64_bf16_causal_nan_v", "decode_nan_v"},
    {"b3_hq2_hkv1_q5_k37_d72_f32_causal_mask-f32-b11k-lowest_sinks_nan_v",
     "decode_nan_v_without_weight"},
    {"b2_hq4_hkv2_q4_k300_d64_f32_causal_inf_k", "decode_inf_k"},

    // What happens to scores.
    {"b2_hq8_hkv2_q1_k400_d64_bf16_mask-bool-b11k-padding", "decode_padding_mask"},
    {"b2_hq8_hkv2_q2_k400_d64_f32_mask-bool-bhqk-random_fully_masked_row",
     "decode_fully_masked_row"},
    {"b2_hq8_hkv2_q2_k400_d64_f32_mask-f32-bhqk-random_fully_masked_row",
     "decode_fully_masked_row"},
    {"b2_hq8_hkv2_q4_k400_d64_bf16_causal_br_mask-bf16-1hqk-finite", "decode_additive_mask"},
    {"b2_hq4_hkv2_q2_k400_d64_f32_mask-f64-qk-lowest", "decode_mask_below_f32"},
    {"b2_hq8_hkv2_q2_k400_d64_bf16_causal_br_alibi-br-bh", "decode_alibi"},
    {"b2_hq4_hkv2_q2_k400_d64_f32_softcap5_mask-f32-11qk-random", "decode_softcap_before_mask"},
    {"b1_hq4_hkv2_q2_k300_d64_f32_causal_br_sinks", "decode_sinks"},
    {"b3_hq8_hkv2_q1_k300_d64_bf16_causal_br_sinks-some_seqused", "decode_sinks"},
    {"b2_hq4_hkv2_q3_k300_d64_f32_dropout0.3_droporigin-77-1001_dropstreams", "decode_dropout"},
    {"b2_hq8_hkv2_q2_k300_d64_bf16_causal_br_dropout0.5", "decode_dropout"},
    {"b1_hq2_hkv1_q2_k700_d64_f32_std64", "decode_huge_logits"},
    {"b1_hq2_hkv1_q2_k300_d64_f32_scale3_std1000", "decode_logits_of_thousands"},
    {"b1_hq2_hkv1_q2_k300_d64_bf16_scale-0.125", "decode_negative_scale"},
    {"b1_hq2_hkv1_q2_k300_d64_f32_scale0", "decode_scale0"},

    // Prologue.
    {"b2_hq8_hkv2_q1_k300_d64_bf16_causal_br_rope-half-half-s-all-f32_ropeoff-299-0_rope_q_only",
     "decode_rotated_cache"},
    {"b2_hq8_hkv2_q2_k200_d64_f32_causal_br_rope-il-half-s-all-f32_ropeoff-198-0",
     "decode_rope_of_the_cache"},
    {"b2_hq4_hkv2_q2_k200_d64_bf16_qknorm_rope-half-dup-bs-32-f32", "decode_qknorm_and_rope"},

    // What is asked for.
    {"b2_hq8_hkv2_q1_k300_d64_bf16_f32out", "decode_f32_result"},
    {"b2_hq8_hkv2_q1_k300_d64_bf16_nolse", "decode_no_lse"},
    {"b2_hq8_hkv2_q3_k300_d64_f32_outseg2", "decode_segmented_out"},
};

}  // namespace

const std::span<const TableRow> kDecodeRows{kRows};

}  // namespace fovea::cases
