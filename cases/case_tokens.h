// The words of case names, shared by the parser and the printer.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include "cases/case.h"

namespace fovea::cases::tokens {

/// A required token: a letter or two and a number.
struct Number {
  std::string_view token;
  std::int64_t Case::*member;
};
inline constexpr std::array<Number, 6> kNumbers{{{"b", &Case::batch},
                                                 {"hq", &Case::q_heads},
                                                 {"hkv", &Case::kv_heads},
                                                 {"q", &Case::q_len},
                                                 {"k", &Case::kv_len},
                                                 {"d", &Case::head_dim}}};

/// A token that turns something on.
struct Flag {
  std::string_view token;
  bool* (*of)(Case&);
};
inline constexpr std::array<Flag, 23> kFlags{{
    {"f32out", [](Case& c) { return &c.f32_out; }},
    {"f32grads", [](Case& c) { return &c.f32_grads; }},
    {"tf32", [](Case& c) { return &c.tf32; }},
    {"dropstreams", [](Case& c) { return &c.dropout.streams; }},
    {"dropdevice", [](Case& c) { return &c.dropout.device_seed; }},
    {"ropeoffs", [](Case& c) { return &c.rope.offsets_per_batch; }},
    {"rope_q_only", [](Case& c) { return &c.rope.q_only; }},
    {"rope_k_only", [](Case& c) { return &c.rope.k_only; }},
    {"unaligned", [](Case& c) { return &c.unaligned; }},
    {"nan_v", [](Case& c) { return &c.nan_v; }},
    {"inf_k", [](Case& c) { return &c.inf_k; }},
    {"inf_dout", [](Case& c) { return &c.inf_dout; }},
    {"nolse", [](Case& c) { return &c.no_lse; }},
    {"dout0", [](Case& c) { return &c.expanded_dout; }},
    {"nodout", [](Case& c) { return &c.no_dout; }},
    {"dlse", [](Case& c) { return &c.dlse; }},
    {"dmask", [](Case& c) { return &c.dmask; }},
    {"dsinks", [](Case& c) { return &c.dsinks; }},
    {"dnorm", [](Case& c) { return &c.dnorm; }},
    {"nodq", [](Case& c) { return &c.no_dq; }},
    {"nodk", [](Case& c) { return &c.no_dk; }},
    {"nodv", [](Case& c) { return &c.no_dv; }},
    {"fully_masked_row", [](Case& c) { return &c.mask.fully_masked_row; }},
}};

template <class T, std::size_t N>
using Words = std::array<std::pair<std::string_view, T>, N>;

inline constexpr Words<Anchor, 2> kAnchors{
    {{"tl", Anchor::top_left}, {"br", Anchor::bottom_right}}};
inline constexpr Words<Layout, 7> kLayouts{{{"bshd", Layout::bshd},
                                            {"packed_qkv", Layout::packed_qkv},
                                            {"stride0_kv", Layout::stride0_kv},
                                            {"padded", Layout::padded},
                                            {"last2", Layout::last2},
                                            {"reversed", Layout::reversed},
                                            {"wide", Layout::wide}}};
inline constexpr Words<MaskContents, 8> kMaskContents{{{"random", MaskContents::random},
                                                       {"padding", MaskContents::padding},
                                                       {"gap", MaskContents::gap},
                                                       {"ones", MaskContents::ones},
                                                       {"document", MaskContents::document},
                                                       {"finite", MaskContents::finite},
                                                       {"lowest", MaskContents::lowest},
                                                       {"binary", MaskContents::binary}}};
inline constexpr Words<MaskLayout, 4> kMaskLayouts{{{"odd", MaskLayout::odd},
                                                    {"transposed", MaskLayout::transposed},
                                                    {"expanded", MaskLayout::expanded},
                                                    {"step2", MaskLayout::step2}}};
inline constexpr Words<RopeStyle, 2> kRopeStyles{
    {{"il", RopeStyle::interleaved}, {"half", RopeStyle::half}}};
inline constexpr Words<RopeTable, 2> kRopeTables{
    {{"half", RopeTable::half}, {"dup", RopeTable::duplicated}}};
inline constexpr Words<TableBatch, 3> kTableBatches{
    {{"s", TableBatch::none}, {"1s", TableBatch::one}, {"bs", TableBatch::each}}};
inline constexpr Words<DType, 5> kDTypes{{{"f32", DType::f32},
                                          {"f16", DType::f16},
                                          {"bf16", DType::bf16},
                                          {"f64", DType::f64},
                                          {"bool", DType::boolean}}};

template <class T, std::size_t N>
constexpr std::string_view word_of(const Words<T, N>& words, T value) {
  for (const auto& [word, known] : words) {
    if (known == value) return word;
  }
  return "?";
}

/// False when the word is not in the list.
template <class T, std::size_t N>
constexpr bool value_of(const Words<T, N>& words, std::string_view word, T& value) {
  for (const auto& [known, meaning] : words) {
    if (known == word) {
      value = meaning;
      return true;
    }
  }
  return false;
}

}  // namespace fovea::cases::tokens
