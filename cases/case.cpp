#include "cases/case.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "cases/case_tokens.h"

namespace fovea::cases {

using namespace tokens;

DType Case::compute() const {
  if (q_dtype == DType::f64 && k_dtype == DType::f64 && v_dtype == DType::f64) return DType::f64;
  return cast != DType::none ? cast : q_dtype;
}

bool operator==(const Case& a, const Case& b) { return name_of(a) == name_of(b); }

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

namespace {

std::string side(std::int64_t value) {
  return value == kUnbounded ? "inf" : fmt::format("{}", value);
}

std::string name_of_band(const Band& band) {
  if (band == Band::causal(Anchor::top_left)) return "_causal";
  if (band == Band::causal(Anchor::bottom_right)) return "_causal_br";
  return fmt::format("_window-{}-{}-{}", word_of(kAnchors, band.anchor), side(band.left),
                     side(band.right));
}

std::string name_of_dtypes(const Case& c) {
  if (c.q_dtype == c.k_dtype && c.k_dtype == c.v_dtype)
    return fmt::format("_{}", name_of(c.q_dtype));
  return fmt::format("_{}-{}-{}", name_of(c.q_dtype), name_of(c.k_dtype), name_of(c.v_dtype));
}

std::string name_of_mask(const MaskCase& mask) {
  std::string name = fmt::format("_mask-{}-{}-{}", name_of(mask.dtype), mask.dims,
                                 word_of(kMaskContents, mask.contents));
  if (mask.layout != MaskLayout::dense)
    name += fmt::format("-{}", word_of(kMaskLayouts, mask.layout));
  return name;
}

std::string name_of_rope(const RopeCase& rope) {
  std::string name = fmt::format(
      "_rope-{}-{}-{}-{}-{}", word_of(kRopeStyles, rope.style), word_of(kRopeTables, rope.table),
      word_of(kTableBatches, rope.batch),
      rope.rotary_dim == 0 ? "all" : fmt::format("{}", rope.rotary_dim), name_of(rope.dtype));
  if (rope.q_offset != 0 || rope.k_offset != 0) {
    name += fmt::format("_ropeoff-{}-{}", rope.q_offset, rope.k_offset);
  }
  return name;
}

std::string name_of_index(std::string_view token, IndexKind kind) {
  if (kind == IndexKind::none) return {};
  return fmt::format("_{}{}", token, kind == IndexKind::i64 ? "-i64" : "");
}

}  // namespace

std::string name_of(const Case& c) {
  std::string name;
  for (const Number& number : kNumbers) {
    name += fmt::format("{}{}{}", name.empty() ? "" : "_", number.token, c.*number.member);
  }
  if (c.v_head_dim != c.head_dim) name += fmt::format("_dv{}", c.v_head_dim);
  name += name_of_dtypes(c);
  if (c.cast != DType::none) name += fmt::format("_cast-{}", name_of(c.cast));
  if (c.quantization.dtype != QuantizedDType::none) {
    name += fmt::format("_{}{}", c.quantization.dtype == QuantizedDType::int8 ? "int8" : "int4",
                        c.quantization.block == QuantizedBlock::block_wise ? "-block" : "");
  }
  if (c.band) name += name_of_band(*c.band);
  if (c.scale) name += fmt::format("_scale{}", *c.scale);
  if (c.softcap != 0) name += fmt::format("_softcap{}", c.softcap);
  if (c.mask.dtype != DType::none) name += name_of_mask(c.mask);
  if (c.alibi != SlopeKind::none) {
    name += fmt::format("_alibi-{}-{}", word_of(kAnchors, c.alibi_anchor),
                        c.alibi == SlopeKind::per_head ? "h" : "bh");
  }
  if (c.sinks != SinkKind::none) name += c.sinks == SinkKind::all ? "_sinks" : "_sinks-some";
  if (c.dropout.probability != 0) name += fmt::format("_dropout{}", c.dropout.probability);
  if (c.dropout.row_origin != 0 || c.dropout.column_origin != 0) {
    name += fmt::format("_droporigin-{}-{}", c.dropout.row_origin, c.dropout.column_origin);
  }
  name += name_of_index("varlen", c.varlen);
  name += name_of_index("seqused", c.seqused);
  if (c.page_size != 0) name += fmt::format("_paged{}", c.page_size);
  if (c.q_segments != 1 || c.k_segments != 1 || c.v_segments != 1) {
    name += fmt::format("_seg-{}-{}-{}", c.q_segments, c.k_segments, c.v_segments);
  }
  if (c.out_segments != 1) name += fmt::format("_outseg{}", c.out_segments);
  if (c.qk_norm != NormKind::none) {
    name += c.qk_norm == NormKind::weights ? "_qknorm" : "_qknorm-plain";
  }
  if (c.rope.enabled) name += name_of_rope(c.rope);
  if (c.layout != Layout::bhsd) name += fmt::format("_{}", word_of(kLayouts, c.layout));
  if (c.logits_std != 1) name += fmt::format("_std{}", c.logits_std);
  Case flags = c;
  for (const Flag& flag : kFlags) {
    if (*flag.of(flags)) name += fmt::format("_{}", flag.token);
  }
  return name;
}

namespace {

bool broadcasts(const std::string& dims) {
  constexpr std::string_view kFull = "bhqk";
  if (dims.empty() || dims.size() > kFull.size()) return false;
  const std::string_view letters = kFull.substr(kFull.size() - dims.size());
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] != '1' && dims[i] != letters[i]) return false;
  }
  return true;
}

bool additive(const MaskCase& mask) { return is_floating(mask.dtype); }

/// The largest count, length or offset: enough for any machine.
constexpr std::int64_t kMostRows = std::int64_t{1} << 20;
/// The largest tensor in elements, so that its bytes fit 64 bits in every layout.
constexpr double kMostElements = 0x1p40;

/// At least the elements of any of the case's tensors, up to small factors of layouts.
double elements_of(const Case& c) {
  const auto size = [](std::int64_t n) {
    return static_cast<double>(std::max<std::int64_t>(n, 1));
  };
  const double rows = size(std::max({c.q_len, c.kv_len, c.page_size}));
  const double operand =
      size(c.batch) * size(c.q_heads) * rows * size(std::max(c.head_dim, c.v_head_dim));
  double mask = 1;
  for (const char letter : c.mask.dims) {
    if (letter == 'b') mask *= size(c.batch);
    if (letter == 'h') mask *= size(c.q_heads);
    if (letter == 'q') mask *= size(c.q_len);
    if (letter == 'k') mask *= size(c.kv_len);
  }
  return std::max(operand, mask);
}

/// The first rule that the case breaks, or null.
const char* broken_rule(const Case& c) {
  const bool packed = c.varlen != IndexKind::none, paged = c.page_size != 0;
  const bool segmented =
      c.q_segments != 1 || c.k_segments != 1 || c.v_segments != 1 || c.out_segments != 1;
  const bool mixed = c.q_dtype != c.k_dtype || c.k_dtype != c.v_dtype;
  const bool any_f64 =
      c.q_dtype == DType::f64 || c.k_dtype == DType::f64 || c.v_dtype == DType::f64;
  const bool mask = c.mask.dtype != DType::none;
  const auto rule = [](bool broken, const char* text) { return broken ? text : nullptr; };
  const std::array rules = {
      rule(
          c.q_heads < 1 || c.kv_heads < 1 || c.q_heads % std::max<std::int64_t>(c.kv_heads, 1) != 0,
          "hkv must divide hq"),
      rule(elements_of(c) > kMostElements, "tensors have at most 2^40 elements"),
      rule(std::max({c.page_size, c.rope.q_offset, c.rope.k_offset}) > kMostRows,
           "page sizes and rope offsets are at most 2^20"),
      rule(c.head_dim < 1 || c.head_dim > 512 || c.v_head_dim < 1 || c.v_head_dim > 512,
           "d and dv are 1 to 512"),
      rule(mixed && c.cast == DType::none, "mixed dtypes need cast"),
      rule(mixed && any_f64, "f64 is not mixed with other dtypes"),
      rule(c.cast == DType::f64, "cast is to f32, f16 or bf16"),
      rule(mask && !broadcasts(c.mask.dims), "mask dimensions are the end of bhqk, each or 1"),
      rule(mask && c.mask.dtype == DType::boolean && c.mask.contents > MaskContents::document,
           "these mask contents are additive"),
      rule(c.mask.fully_masked_row && c.mask.dims.find('q') == std::string::npos,
           "fully_masked_row needs a mask with dimension q"),
      rule(c.alibi != SlopeKind::none && c.band && c.band->anchor != c.alibi_anchor,
           "alibi has the band's anchor"),
      rule((c.dropout.streams || c.dropout.device_seed || c.dropout.row_origin != 0 ||
            c.dropout.column_origin != 0) &&
               c.dropout.probability == 0,
           "dropout options need dropout"),
      rule(!(c.dropout.probability >= 0 && c.dropout.probability <= 1), "dropout is 0 to 1"),
      rule(paged && c.seqused == IndexKind::none, "paged needs seqused"),
      rule(paged && c.k_dtype != c.v_dtype && c.cast == DType::none, "paged pools share a dtype"),
      rule(segmented && (packed || paged), "segments exclude varlen and paged"),
      rule(std::max({c.q_segments, c.k_segments, c.v_segments, c.out_segments}) > kMaxSegments,
           "at most 4 segments"),
      rule(std::min({c.q_segments, c.k_segments, c.v_segments, c.out_segments}) < 1,
           "at least 1 segment"),
      rule(c.rope.enabled && (c.rope.rotary_dim == 0
                                  ? c.head_dim % 2 != 0
                                  : c.rope.rotary_dim % 2 != 0 || c.rope.rotary_dim > c.head_dim),
           "rotary_dim is even and at most d"),
      rule(!c.rope.enabled && c.rope != RopeCase{}, "rope options need rope"),
      rule(c.rope.q_only && c.rope.k_only, "rope_q_only excludes rope_k_only"),
      rule(c.dnorm && c.qk_norm != NormKind::weights, "dnorm needs qknorm"),
      rule(c.dmask && !additive(c.mask), "dmask needs an additive mask"),
      rule(c.dsinks && c.sinks == SinkKind::none, "dsinks needs sinks"),
      rule(c.layout == Layout::packed_qkv &&
               (c.q_heads != c.kv_heads || c.q_len != c.kv_len || c.v_head_dim != c.head_dim ||
                mixed || packed || paged || segmented),
           "packed_qkv needs equal heads, lengths, dims and dtypes, dense"),
      rule(c.layout == Layout::stride0_kv && (packed || paged), "stride0_kv is dense"),
      rule((c.nan_v || c.inf_k) && (c.kv_len == 0 || c.q_len == 0 || c.batch == 0),
           "nan_v and inf_k need elements"),
      rule(c.no_dout && !c.dlse, "nodout needs dlse"),
      rule(c.no_dout && (c.expanded_dout || c.inf_dout), "nodout excludes dout0 and inf_dout"),
      rule(c.no_dq && c.no_dk && c.no_dv && !c.dmask && !c.dsinks, "no gradient is left"),
      rule(!(c.softcap >= 0) || !std::isfinite(c.softcap), "softcap is positive"),
      rule(!std::isfinite(c.scale.value_or(1)) || !std::isfinite(c.logits_std),
           "scale and std are finite"),
      rule(c.mask.layout == MaskLayout::transposed && c.mask.dims.size() < 2,
           "a transposed mask has 2 dimensions"),
  };
  for (const char* text : rules) {
    if (text != nullptr) return text;
  }
  return nullptr;
}

}  // namespace

Status check_case(const Case& c) {
  for (const Number& number : kNumbers) {
    if (c.*number.member < 0 || c.*number.member > kMostRows) {
      return {StatusCode::invalid, fmt::format("case {}: {} must be 0 to {}; got {}", name_of(c),
                                               number.token, kMostRows, c.*number.member)};
    }
  }
  if (const char* text = broken_rule(c); text != nullptr) {
    return {StatusCode::invalid, fmt::format("case {}: {}", name_of(c), text)};
  }
  return {};
}

std::optional<Case> with_dtype(Case c, DType dtype) {
  c.q_dtype = c.k_dtype = c.v_dtype = dtype;
  return check_case(c).ok() ? std::optional(c) : std::nullopt;
}

}  // namespace fovea::cases
