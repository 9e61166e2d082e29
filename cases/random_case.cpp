#include "cases/random_case.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include <fovea/plan.h>

#include "cases/device_copies.h"
#include "cases/outputs.h"
#include "cases/random_numbers.h"
#include "cases/run_case.h"

namespace fovea::cases {
namespace {

/// Something a case may have: tokens that ask a kernel whether it serves it, how often it occurs,
/// and how it is made.
struct Trait {
  std::string_view probe;
  double probability;
  void (*apply)(Case&, RandomNumbers&);
};

Anchor any_anchor(RandomNumbers& r) { return r.pick({Anchor::top_left, Anchor::bottom_right}); }
IndexKind any_index(RandomNumbers& r) { return r.pick({IndexKind::i32, IndexKind::i64}); }

std::int64_t any_side(RandomNumbers& r, std::int64_t length) {
  return r.chance(0.2) ? kUnbounded : r.chance(0.2) ? 0 : r.between(0, length + 1);
}

void set_dtype(Case& c, DType dtype) { c.q_dtype = c.k_dtype = c.v_dtype = dtype; }

std::string any_mask_dims(RandomNumbers& r) {
  std::string dims = std::string("bhqk").substr(static_cast<std::size_t>(r.between(0, 3)));
  for (char& letter : dims) {
    if (r.chance(0.3)) letter = '1';
  }
  return dims;
}

void set_mask(Case& c, RandomNumbers& r, DType dtype, MaskContents contents) {
  c.mask.dtype = dtype;
  c.mask.dims = any_mask_dims(r);
  c.mask.contents = contents;
  if (r.chance(0.3)) {
    c.mask.layout =
        r.pick({MaskLayout::odd, MaskLayout::transposed, MaskLayout::expanded, MaskLayout::step2});
  }
  c.mask.fully_masked_row = c.mask.dims.find('q') != std::string::npos && r.chance(0.2);
}

// clang-format off
const std::array<Trait, kTraitCount> kTraits{{
    {"hq4", 0.5, [](Case& c, RandomNumbers& r) { c.q_heads = c.kv_heads * r.between(2, 4); }},
    {"dv5", 0.2, [](Case& c, RandomNumbers& r) { c.v_head_dim = r.between(1, 96); }},
    {"causal", 0.3, [](Case& c, RandomNumbers& r) { c.band = Band::causal(any_anchor(r)); }},
    {"window-tl-2-1", 0.25, [](Case& c, RandomNumbers& r) {
       c.band = Band::window(any_anchor(r), any_side(r, c.kv_len), any_side(r, c.kv_len)); }},
    {"scale0.5", 0.2, [](Case& c, RandomNumbers& r) {
       c.scale = r.pick({0.0, -0.25, 0.125, 1.0, 1e-3}); }},
    {"std16", 0.2, [](Case& c, RandomNumbers& r) { c.logits_std = r.pick({0.0, 4.0, 16.0, 64.0});
       // Logits beyond a deviation of 64 are the table's.
       const double unit = std::abs(c.scale.value_or(0)) * std::sqrt(static_cast<double>(c.head_dim));
       if (unit > 1) c.logits_std = std::floor(c.logits_std / unit); }},
    {"mask-bool-b1qk-random", 0.2, [](Case& c, RandomNumbers& r) {
       set_mask(c, r, DType::boolean, r.pick({MaskContents::random, MaskContents::padding,
                MaskContents::gap, MaskContents::ones, MaskContents::document})); }},
    {"mask-f32-b1qk-random", 0.2, [](Case& c, RandomNumbers& r) {
       set_mask(c, r, r.pick({DType::f32, DType::f16, DType::bf16, DType::f64}),
                r.pick({MaskContents::random, MaskContents::finite, MaskContents::lowest,
                        MaskContents::binary, MaskContents::ones})); }},
    // A mask that is constant along keys has gradient 0 but for rounding, which nothing judges.
    {"mask-f32-b1qk-finite_dmask", 0.1, [](Case& c, RandomNumbers&) {
       c.dmask = c.mask.dims.ends_with('k'); }},
    {"alibi-tl-h", 0.1, [](Case& c, RandomNumbers& r) {
       c.alibi = r.pick({SlopeKind::per_head, SlopeKind::per_batch});
       c.alibi_anchor = c.band ? c.band->anchor : any_anchor(r); }},
    {"softcap5", 0.1, [](Case& c, RandomNumbers& r) { c.softcap = r.pick({1.0, 5.0, 30.0}); }},
    {"sinks", 0.1, [](Case& c, RandomNumbers& r) { c.sinks = r.pick({SinkKind::all, SinkKind::some}); }},
    {"sinks_dsinks", 0.05, [](Case& c, RandomNumbers&) { c.dsinks = true; }},
    {"dropout0.5", 0.15, [](Case& c, RandomNumbers& r) {
       c.dropout.probability = r.pick({0.1, 0.5, 0.9, 1.0});
       c.dropout.streams = r.chance(0.3);
       c.dropout.device_seed = r.chance(0.3);
       if (r.chance(0.3)) c.dropout.row_origin = r.between(0, 1000);
       if (r.chance(0.3)) c.dropout.column_origin = r.between(0, 1000); }},
    {"varlen", 0.1, [](Case& c, RandomNumbers& r) { c.varlen = any_index(r); }},
    {"seqused", 0.1, [](Case& c, RandomNumbers& r) { c.seqused = any_index(r); }},
    {"seqused_paged4", 0.1, [](Case& c, RandomNumbers& r) {
       c.seqused = any_index(r);
       c.page_size = r.pick<std::int64_t>({1, 3, 16, 64}); }},
    {"seg-2-2-2", 0.1, [](Case& c, RandomNumbers& r) {
       c.q_segments = r.between(1, 4);
       c.k_segments = r.between(1, 4);
       c.v_segments = r.between(1, 4); }},
    {"outseg2", 0.05, [](Case& c, RandomNumbers& r) { c.out_segments = r.between(1, 4); }},
    {"qknorm", 0.1, [](Case& c, RandomNumbers& r) {
       c.qk_norm = r.pick({NormKind::weights, NormKind::plain}); }},
    {"qknorm_dnorm", 0.1, [](Case& c, RandomNumbers&) { c.dnorm = true; }},
    {"rope-il-half-s-all-f32", 0.15, [](Case& c, RandomNumbers& r) {
       c.rope.enabled = true;
       c.rope.style = r.pick({RopeStyle::interleaved, RopeStyle::half});
       c.rope.table = r.pick({RopeTable::half, RopeTable::duplicated});
       c.rope.batch = r.pick({TableBatch::none, TableBatch::one, TableBatch::each});
       c.rope.dtype = r.pick({DType::f32, DType::f16, DType::bf16});
       if (r.chance(0.3) && c.head_dim > 2) c.rope.rotary_dim = 2 * r.between(1, c.head_dim / 2);
       if (r.chance(0.3)) c.rope.q_offset = r.between(0, 50);
       if (r.chance(0.3)) c.rope.k_offset = r.between(0, 50);
       c.rope.offsets_per_batch = r.chance(0.2);
       c.rope.q_only = r.chance(0.2); }},
    {"bf16", 0.25, [](Case& c, RandomNumbers&) { set_dtype(c, DType::bf16); }},
    {"f16", 0.25, [](Case& c, RandomNumbers&) { set_dtype(c, DType::f16); }},
    {"f64", 0.03, [](Case& c, RandomNumbers&) { set_dtype(c, DType::f64); }},
    {"f32-f16-bf16_cast-bf16", 0.1, [](Case& c, RandomNumbers& r) {
       for (DType Case::*member : {&Case::q_dtype, &Case::k_dtype, &Case::v_dtype}) {
         c.*member = r.pick({DType::f32, DType::f16, DType::bf16});
       }
       c.cast = r.pick({DType::f32, DType::f16, DType::bf16}); }},
    {"bf16_f32out", 0.1, [](Case& c, RandomNumbers&) { c.f32_out = true; }},
    {"bf16_f32grads", 0.1, [](Case& c, RandomNumbers&) { c.f32_grads = true; }},
    {"bshd", 0.2, [](Case& c, RandomNumbers&) { c.layout = Layout::bshd; }},
    {"packed_qkv_k5", 0.1, [](Case& c, RandomNumbers&) {
       c.layout = Layout::packed_qkv;
       c.q_heads = c.kv_heads;
       c.kv_len = c.q_len;
       c.v_head_dim = c.head_dim; }},
    {"stride0_kv", 0.1, [](Case& c, RandomNumbers&) { c.layout = Layout::stride0_kv; }},
    {"padded", 0.1, [](Case& c, RandomNumbers&) { c.layout = Layout::padded; }},
    {"last2", 0.05, [](Case& c, RandomNumbers&) { c.layout = Layout::last2; }},
    {"reversed", 0.05, [](Case& c, RandomNumbers&) { c.layout = Layout::reversed; }},
    {"unaligned", 0.2, [](Case& c, RandomNumbers&) { c.unaligned = true; }},
    {"nan_v", 0.03, [](Case& c, RandomNumbers&) { c.nan_v = true; }},
    {"dlse", 0.2, [](Case& c, RandomNumbers&) { c.dlse = true; }},
    {"dlse_nodout", 0.05, [](Case& c, RandomNumbers&) { c.no_dout = true; }},
    {"dout0", 0.05, [](Case& c, RandomNumbers&) { c.expanded_dout = true; }},
    {"nodk", 0.1, [](Case& c, RandomNumbers& r) {
       c.no_dq = r.chance(0.5);
       c.no_dk = r.chance(0.5);
       c.no_dv = r.chance(0.5); }},
    {"nolse", 0.05, [](Case& c, RandomNumbers&) { c.no_lse = true; }},
    // Cases have them unless they are out of scope.
    {"q80", 0, [](Case&, RandomNumbers&) {}},
}};
// clang-format on

constexpr std::size_t kManyQueries = kTraitCount - 1;
constexpr std::int64_t kFewQueries = 16;

/// A small case with just the trait's tokens; they replace the tokens they set.
Case probe_case(const Trait& trait) {
  std::string name = fmt::format("b1_hkv2_d8_{}", trait.probe);
  const auto complete = [&](std::string_view token, auto... present) {
    if (((name.find(present) == std::string::npos) && ...)) name += fmt::format("_{}", token);
  };
  complete("hq2", "_hq");
  complete("q5", "_q80");
  complete("k7", "_k5");
  complete("f32", "_bf16", "_f16", "_f64", "_f32-");
  return parse_case(name).value();
}

std::int64_t any_length(RandomNumbers& r) {
  switch (r.between(0, 9)) {
    case 0:
      return 1;
    case 1:
      return r.pick<std::int64_t>({16, 32, 64, 96, 128, 256});
    case 2:
    case 3:
      return r.between(1, 400);
    default:
      return r.between(1, 80);
  }
}

std::int64_t any_head_dim(RandomNumbers& r) {
  if (r.chance(0.5)) return r.pick<std::int64_t>({8, 16, 32, 40, 64, 72, 88, 96, 128});
  return r.chance(0.9) ? r.between(1, 136) : r.between(137, 512);
}

}  // namespace

bool would_serve(const std::string& kernel, const Case& c) {
  PlanOptions options;
  options.choice.kernel = kernel;
  options.self_check = false;
  const std::unique_ptr<Inputs> inputs = make_inputs(c, 0);
  const Outputs forward = make_forward_outputs(*inputs, Width::as_asked);
  const Device device = device_of(kernel);
  if (direction_of(kernel) == Direction::forward) {
    return Plan::make(as_on(device, forward_args(*inputs, forward)), options).ok();
  }
  const Saved saved{make_like_out(c, inputs->lengths, c.out_dtype()),
                    make_like_lse(c, inputs->lengths)};
  const Outputs backward = make_backward_outputs(*inputs, Width::as_asked);
  return Plan::make(as_on(device, backward_args(*inputs, saved, backward)), options).ok();
}

Scope whole_scope() { return Scope().set(); }

Scope scope_of(const std::string& kernel) {
  // A kernel of another dtype is asked everything and skips what it refuses.
  if (!would_serve(kernel, parse_case("b1_hq2_hkv2_q5_k7_d8_f32").value())) return whole_scope();
  Scope scope;
  for (std::size_t n = 0; n < kTraitCount; ++n) {
    scope[n] = would_serve(kernel, probe_case(kTraits[n]));
  }
  return scope;
}

Case random_case(std::uint64_t seed, const Scope& scope) {
  RandomNumbers r(seed * 0x9E3779B97F4A7C15u + 0x5EED);
  Case c;
  constexpr double kMostPairs = 200'000, kMostWork = 6'000'000;
  do {
    c.batch = r.between(1, 3);
    c.kv_heads = c.q_heads = r.between(1, 3);
    c.q_len = any_length(r);
    c.kv_len = any_length(r);
    c.head_dim = c.v_head_dim = any_head_dim(r);
    if (r.chance(0.02)) c.batch = 0;
    if (r.chance(0.02)) c.q_len = 0;
    if (r.chance(0.02)) c.kv_len = 0;
    const double pairs = static_cast<double>(c.batch * c.kv_heads * c.q_len * c.kv_len);
    if (pairs <= kMostPairs && pairs * static_cast<double>(c.head_dim) <= kMostWork) break;
  } while (true);
  if (!scope[kManyQueries] && c.q_len > 0) c.q_len = 1 + (c.q_len - 1) % kFewQueries;
  for (std::size_t n = 0; n < kTraitCount; ++n) {
    // Drawn for every trait, so that a scope changes no other part of the case.
    const bool wanted = r.chance(kTraits[n].probability);
    RandomNumbers own(r.next());
    if (!wanted || !scope[n]) continue;
    Case more = c;
    kTraits[n].apply(more, own);
    if (check_case(more).ok()) c = more;
  }
  return c;
}

}  // namespace fovea::cases
