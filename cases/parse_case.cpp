// From a name to a case. The tokens are listed in case.h.
#include <charconv>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cases/case.h"
#include "cases/case_tokens.h"

namespace fovea::cases {
namespace {

using namespace tokens;

using Parts = std::vector<std::string_view>;

template <class T>
bool read_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty();
}

bool read_dtype(std::string_view word, DType& dtype) {
  return value_of(kDTypes, word, dtype) && is_floating(dtype);
}

bool read_side(std::string_view word, std::int64_t& value) {
  if (word == "inf") {
    value = kUnbounded;
    return true;
  }
  return read_number(word, value) && value >= 0;
}

Parts split(std::string_view text, char separator) {
  Parts parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

/// Splits at '_', keeping together the words that contain one.
Parts split_name(std::string_view name) {
  static const std::vector<std::string_view> joined = [] {
    std::vector<std::string_view> words{"causal_br"};
    for (const Flag& flag : kFlags) {
      if (flag.token.find('_') != std::string_view::npos) words.push_back(flag.token);
    }
    for (const auto& [word, layout] : kLayouts) {
      if (word.find('_') != std::string_view::npos) words.push_back(word);
    }
    return words;
  }();
  Parts parts;
  while (true) {
    std::size_t length = name.find('_');
    for (const std::string_view word : joined) {
      if (name.starts_with(word) && (name.size() == word.size() || name[word.size()] == '_')) {
        length = word.size();
      }
    }
    parts.push_back(name.substr(0, length));
    if (length >= name.size()) return parts;
    name.remove_prefix(length + 1);
  }
}

// Each reader below returns the group of the token it has taken, under which a second token is
// refused, or an empty string when the token is not its own.

std::string_view read_counts(std::string_view token, Case& c, bool& has_dv) {
  for (const Number& number : kNumbers) {
    if (token.starts_with(number.token) &&
        read_number(token.substr(number.token.size()), c.*number.member)) {
      return number.token;
    }
  }
  if (token.starts_with("dv") && read_number(token.substr(2), c.v_head_dim)) {
    has_dv = true;
    return "dv";
  }
  return {};
}

std::string_view read_types(std::string_view token, const Parts& parts, Case& c) {
  DType dtype{};
  if (read_dtype(token, dtype)) {
    c.q_dtype = c.k_dtype = c.v_dtype = dtype;
    return "dtype";
  }
  if (parts.size() == 3 && read_dtype(parts[0], c.q_dtype) && read_dtype(parts[1], c.k_dtype) &&
      read_dtype(parts[2], c.v_dtype)) {
    return "dtype";
  }
  if (parts.size() == 2 && parts[0] == "cast" && read_dtype(parts[1], c.cast)) return "cast";
  if ((parts[0] == "int8" || parts[0] == "int4") &&
      (parts.size() == 1 || (parts.size() == 2 && parts[1] == "block"))) {
    c.quantization.dtype = parts[0] == "int8" ? QuantizedDType::int8 : QuantizedDType::int4;
    c.quantization.block =
        parts.size() == 2 ? QuantizedBlock::block_wise : QuantizedBlock::tensor_wise;
    return "quantisation";
  }
  return {};
}

std::string_view read_scores(std::string_view token, const Parts& parts, Case& c) {
  if (token == "causal" || token == "causal_br") {
    c.band = Band::causal(token == "causal" ? Anchor::top_left : Anchor::bottom_right);
    return "band";
  }
  Band band{};
  if (parts.size() == 4 && parts[0] == "window" && value_of(kAnchors, parts[1], band.anchor) &&
      read_side(parts[2], band.left) && read_side(parts[3], band.right)) {
    c.band = band;
    return "band";
  }
  if (double scale = 0; token.starts_with("scale") && read_number(token.substr(5), scale)) {
    c.scale = scale;
    return "scale";
  }
  if (token.starts_with("softcap") && read_number(token.substr(7), c.softcap)) return "softcap";
  if (token.starts_with("std") && read_number(token.substr(3), c.logits_std)) return "std";
  if (token == "sinks" || token == "sinks-some") {
    c.sinks = token == "sinks" ? SinkKind::all : SinkKind::some;
    return "sinks";
  }
  if (parts.size() == 3 && parts[0] == "alibi" && value_of(kAnchors, parts[1], c.alibi_anchor) &&
      (parts[2] == "h" || parts[2] == "bh")) {
    c.alibi = parts[2] == "h" ? SlopeKind::per_head : SlopeKind::per_batch;
    return "alibi";
  }
  if ((parts.size() == 4 || parts.size() == 5) && parts[0] == "mask" &&
      value_of(kDTypes, parts[1], c.mask.dtype) &&
      value_of(kMaskContents, parts[3], c.mask.contents) &&
      (parts.size() == 4 || value_of(kMaskLayouts, parts[4], c.mask.layout))) {
    c.mask.dims = std::string(parts[2]);
    return "mask";
  }
  return {};
}

std::string_view read_dropout(std::string_view token, const Parts& parts, Case& c) {
  if (parts.size() == 3 && parts[0] == "droporigin" &&
      read_number(parts[1], c.dropout.row_origin) &&
      read_number(parts[2], c.dropout.column_origin)) {
    return "droporigin";
  }
  if (token.starts_with("dropout") && read_number(token.substr(7), c.dropout.probability)) {
    return "dropout";
  }
  return {};
}

std::string_view read_operands(std::string_view token, const Parts& parts, Case& c) {
  const auto read_index = [&](std::string_view word, IndexKind& kind) {
    if (parts[0] != word || parts.size() > 2 || (parts.size() == 2 && parts[1] != "i64")) {
      return false;
    }
    kind = parts.size() == 2 ? IndexKind::i64 : IndexKind::i32;
    return true;
  };
  if (read_index("varlen", c.varlen)) return "varlen";
  if (read_index("seqused", c.seqused)) return "seqused";
  if (token.starts_with("paged") && read_number(token.substr(5), c.page_size) && c.page_size > 0) {
    return "paged";
  }
  if (parts.size() == 4 && parts[0] == "seg" && read_number(parts[1], c.q_segments) &&
      read_number(parts[2], c.k_segments) && read_number(parts[3], c.v_segments)) {
    return "seg";
  }
  if (token.starts_with("outseg") && read_number(token.substr(6), c.out_segments)) return "outseg";
  if (token == "qknorm" || token == "qknorm-plain") {
    c.qk_norm = token == "qknorm" ? NormKind::weights : NormKind::plain;
    return "qknorm";
  }
  if (value_of(kLayouts, token, c.layout)) return "layout";
  RopeCase& rope = c.rope;
  if (parts.size() == 6 && parts[0] == "rope" && value_of(kRopeStyles, parts[1], rope.style) &&
      value_of(kRopeTables, parts[2], rope.table) &&
      value_of(kTableBatches, parts[3], rope.batch) &&
      (parts[4] == "all" || (read_number(parts[4], rope.rotary_dim) && rope.rotary_dim > 0)) &&
      read_dtype(parts[5], rope.dtype)) {
    rope.enabled = true;
    return "rope";
  }
  if (parts.size() == 3 && parts[0] == "ropeoff" && read_number(parts[1], rope.q_offset) &&
      read_number(parts[2], rope.k_offset) && rope.q_offset >= 0 && rope.k_offset >= 0) {
    return "ropeoff";
  }
  return {};
}

std::string_view read_flag(std::string_view token, Case& c) {
  for (const Flag& flag : kFlags) {
    if (flag.token == token) {
      *flag.of(c) = true;
      return flag.token;
    }
  }
  return {};
}

}  // namespace

Result<Case> parse_case(std::string_view name) {
  const auto bad = [&](const std::string& what) {
    return Status(StatusCode::invalid, fmt::format("case {}: {}", name, what));
  };
  Case c;
  bool has_dv = false;
  std::set<std::string_view> seen;
  for (const std::string_view token : split_name(name)) {
    const Parts parts = split(token, '-');
    std::string_view group = read_counts(token, c, has_dv);
    if (group.empty()) group = read_types(token, parts, c);
    if (group.empty()) group = read_flag(token, c);
    if (group.empty()) group = read_scores(token, parts, c);
    if (group.empty()) group = read_dropout(token, parts, c);
    if (group.empty()) group = read_operands(token, parts, c);
    if (group.empty()) return bad(fmt::format("unknown token '{}'", token));
    if (!seen.insert(group).second) return bad(fmt::format("'{}' sets {} twice", token, group));
  }
  for (const Number& number : kNumbers) {
    if (!seen.contains(number.token)) return bad(fmt::format("'{}' is missing", number.token));
  }
  if (!seen.contains("dtype")) return bad("the dtype is missing");
  if (!has_dv) c.v_head_dim = c.head_dim;
  if (Status s = check_case(c); !s.ok()) return s;
  return c;
}

}  // namespace fovea::cases
