// What stands between the product and the softmax on the GPU: the score of (i, j), and whether i
// sees j.
//
//   s = softcap(scale q_i.k_j) + mask(i,j) - slope |i + o - j|      softcap(x) = c tanh(x / c)
//
// A finite s is raised to -FLT_MAX / log2(e) at least.
#pragma once

#include "contract/plain_rows.h"
#include "cuda/device/numbers.h"

namespace fovea::cuda::FOVEA_WORLD {

inline constexpr float kLn2 = 0.69314718055994530942f;
inline constexpr float kLargestFloat = 3.4028234663852886e38f;
inline constexpr float kLeastScore =
    static_cast<float>(-static_cast<double>(kLargestFloat) / 1.4426950408889634);

FOVEA_DEVICE float float_at(const plain::Floats& x, std::int64_t batch_offset, std::int64_t n,
                            float otherwise) {
  return x.data == nullptr ? otherwise
                           : load_element(x.data, x.element, batch_offset + n * x.stride);
}

/// One query row: what its scores need beside the product.
struct ScoreRow {
  std::int64_t begin = 0, end = 0;  ///< keys that band and lengths let it see
  const char* mask = nullptr;       ///< element 0 of its row
  float slope = 0;
  std::int64_t diagonal = 0;  ///< i + o of ALiBi
};

FOVEA_DEVICE ScoreRow score_row(const plain::Call& call, const plain::Sequence& s,
                                const plain::Band& band, std::int64_t head, std::int64_t i) {
  ScoreRow row;
  if (i >= s.q_len) return row;
  const plain::Span keys = plain::meet(band.keys_of(i), {0, s.kv_len});
  row.begin = keys.begin;
  row.end = keys.end;
  const plain::MaskArgs& mask = call.scores.mask;
  if (mask.data != nullptr) {
    const std::int64_t size = mask.additive ? plain::size_of(mask.element) : 1;
    row.mask = static_cast<const char*>(mask.data) +
               (s.batch * mask.batch + head * mask.head + i * mask.row) * size;
  }
  row.slope = float_at(call.scores.slopes, s.batch * call.scores.slopes_batch, head, 0);
  row.diagonal = i + (call.scores.slopes_bottom_right ? s.kv_len - s.q_len : 0);
  return row;
}

/// What the mask adds; -inf hides. A finite f64 stays finite.
FOVEA_DEVICE float mask_at(const plain::MaskArgs& mask, const char* row, std::int64_t j) {
  if (!mask.additive) return row[j * mask.column] != 0 ? 0.0f : kNegativeInfinity;
  const float bias = load_element(row, mask.element, j * mask.column);
  if (mask.element == plain::Element::f64 && !is_finite(bias)) {
    const double exact = reinterpret_cast<const double*>(row)[j * mask.column];
    if (exact - exact == 0) return exact < 0 ? -kLargestFloat : kLargestFloat;
  }
  return bias;
}

/// A score in units of 1, and softcap' there.
struct Score {
  float value, cap_slope;
};

/// Score of key j; -inf where the row does not see it.
FOVEA_DEVICE Score score_at(const plain::ScoreArgs& args, float scale, const ScoreRow& row,
                            std::int64_t j, float product) {
  Score hidden{kNegativeInfinity, 0};
  if (j < row.begin || j >= row.end) return hidden;
  float bias = 0;
  if (row.mask != nullptr) {
    bias = mask_at(args.mask, row.mask, j);
    if (bias == kNegativeInfinity) return hidden;
  }
  Score s{product * scale, 1};
  if (args.softcap > 0) {
    const float bent = tanh(s.value / args.softcap);
    s.value = args.softcap * bent;
    s.cap_slope = fma(-bent, bent, 1.0f);
  }
  s.value += bias;
  if (row.slope != 0) {
    const std::int64_t distance = row.diagonal - j;
    s.value = fma(-row.slope, static_cast<float>(distance < 0 ? -distance : distance), s.value);
  }
  // A sum of finite numbers counts as finite.
  if (s.value < kLeastScore && is_finite(product) && is_finite(row.slope)) s.value = kLeastScore;
  return s;
}

/// What a row's sums come to.
struct Total {
  float lse;
  float share;  ///< of O in out
};
/// weight: the sum of exp(s - top) over the keys; sink: a score without a value.
FOVEA_DEVICE Total sum_up(float top, float weight, float sink) {
  if (sink != kNegativeInfinity) {
    if (weight == 0 || sink == kInfinity) return {sink, 0};
    if (sink != sink) return {sink, sink};
    const float larger = sink > top ? sink : top;
    const float shrink = exp2((top - larger) * kLog2e);
    const float all = fma(weight, shrink, exp2((sink - larger) * kLog2e));
    return {fma(log2(all), kLn2, larger), shrink / all};
  }
  if (weight == 0) return {kNegativeInfinity, 0};
  if (top == kInfinity) return {top, 1 / weight};
  if (!is_finite(weight)) return {weight, 1 / weight};
  return {fma(log2(weight), kLn2, top), 1 / weight};
}

/// A range counted from a tile's first row or key.
struct IntSpan {
  int begin, end;
};
/// As far as a tile may care: beyond 2^29 all is far.
FOVEA_DEVICE int counted_from(std::int64_t first, std::int64_t at) {
  constexpr std::int64_t kFar = std::int64_t{1} << 29;
  return static_cast<int>(plain::clamp(at, first - kFar, first + kFar) - first);
}
FOVEA_DEVICE IntSpan counted_from(std::int64_t first, plain::Span span) {
  return {counted_from(first, span.begin), counted_from(first, span.end)};
}
FOVEA_DEVICE IntSpan meet(IntSpan a, IntSpan b) {
  return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

/// Dropout of one (batch, head): which elements stay.
class Keep {
 public:
  FOVEA_DEVICE Keep(const plain::DropoutArgs& args, std::int64_t batch, std::int64_t head,
                    std::int64_t q_heads)
      : threshold_(args.threshold),
        row_origin_(args.row_origin),
        column_origin_(args.column_origin) {
    if (threshold_ > 0) stream_ = plain::stream_of(args, batch, head, q_heads);
  }

  /// Bits 0 to 7: rows i, i + 8 (bit 2) by columns j, j + 8 (bit 1) by j, j + 1 (bit 0), for an
  /// even j with j mod 8 the lane's column of an accumulator and i its row.
  FOVEA_DEVICE std::uint32_t block(std::int64_t i, std::int64_t j) const {
    if (threshold_ > 0xFFFF) return 0;
    const auto row = static_cast<std::uint64_t>(i + row_origin_);
    const auto column = static_cast<std::uint64_t>(j + column_origin_);
    std::uint32_t kept = 0;
    if ((row & 8) == 0 && (column & 9) == 0) {  // one call of the generator decides all
      const philox::Words words = philox::decide_cell(stream_, row, column);
      FOVEA_UNROLL
      for (int n = 0; n < 8; ++n) {
        const std::uint32_t bits = words.w[n / 2] >> (16 * (n % 2)) & 0xFFFFu;
        kept |= static_cast<std::uint32_t>(bits >= threshold_) << n;
      }
      return kept;
    }
    FOVEA_ROLL
    for (std::uint64_t n = 0; n < 8; ++n) {
      const std::uint32_t bits =
          philox::decide(stream_, row + (n >> 2) * 8, column + (n >> 1 & 1) * 8 + (n & 1));
      kept |= static_cast<std::uint32_t>(bits >= threshold_) << n;
    }
    return kept;
  }
  FOVEA_DEVICE bool one(std::int64_t i, std::int64_t j) const {
    return philox::decide(stream_, static_cast<std::uint64_t>(i + row_origin_),
                          static_cast<std::uint64_t>(j + column_origin_)) >= threshold_;
  }

 private:
  std::uint32_t threshold_;
  std::int64_t row_origin_, column_origin_;
  philox::Stream stream_{};
};

}  // namespace fovea::cuda::FOVEA_WORLD
