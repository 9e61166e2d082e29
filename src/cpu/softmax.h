// From scores to weights, and from a row's sums to its results: what every forward kernel does
// alike, so that backward can take any of their results.
//
//   P = exp2((S - m) log2(e)),  l = rowsum P      m: a reference close to the row's maximum
//   out = O / l,  lse = m + log l; with a sink, exp(sink) is one more summand of l
#pragma once

#include "cpu/prologue.h"

namespace fovea::cpu {
namespace {

/// log x of a positive, normal x, within 1e-9.
FOVEA_INLINE double natural_log(float x) {
  std::int32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  constexpr std::int32_t kRootOfHalf = 0x3f3504f3;
  const std::int32_t exponent = (bits - kRootOfHalf) >> 23;
  bits -= exponent << 23;
  float fraction;  // between the roots of 1/2 and 2, without a branch that nobody could predict
  __builtin_memcpy(&fraction, &bits, sizeof fraction);
  const double m = static_cast<double>(fraction);
  const double z = (m - 1) / (m + 1), w = z * z;
  const double series = 1 + w * (1.0 / 3 + w * (1.0 / 5 + w * (1.0 / 7 + w * (1.0 / 9))));
  return exponent * kLn2 + 2 * z * series;
}

/// What unit scores are kept in. Where nothing but the scale is applied to them, that is +-Q K^T,
/// and they are multiplied by the scale's size on the way to the exponent.
struct ScoreUnits {
  bool bent = false;   ///< scores are more than that, in units of 1: Scores::bend_* makes them
  float sign = 1;      ///< Q is multiplied by it
  double size = 1;     ///< of the unit
  float to_base2 = 1;  ///< size log2(e)
  float largest = 0;   ///< the largest score that base 2 can hold

  explicit ScoreUnits(const FlashArgs& args) {
    const ScoreArgs& scores = args.scores;
    bent = scores.softcap > 0 || scores.mask.additive || scores.slopes.data != nullptr ||
           (kPack > 1 && !(args.scale > 0));  // words cannot be multiplied by a sign
    if (!bent) {
      sign = args.scale > 0 ? 1.0f : args.scale < 0 ? -1.0f : 0.0f;
      const auto scale = static_cast<float>(args.scale);  // backward's as well
      size = scale == 0 ? 1 : static_cast<double>(scale < 0 ? -scale : scale);
    }
    to_base2 = static_cast<float>(size * kLog2e);
    largest = to_base2 > 1 ? kFloatMax / to_base2 : kFloatMax;
  }
};

/// Finite scores, brought within what f32 can hold once they are scaled to base 2.
FOVEA_INLINE Vec bounded(Vec s, float largest) {
  const Vec within = min(splat(largest), max(splat(-largest), s));
  return select(equal(absolute(s), splat(kInfinity)), s, within);
}

/// What a row's sums come to.
struct Total {
  float lse;
  float share;  ///< of O in out
};
/// weight: the sum of exp(s - top) over the keys; sink: a score without a value.
inline Total sum_up(float top, float weight, float sink) {
  if (sink != -kInfinity) {
    if (weight == 0 || sink == kInfinity) return {sink, 0};
    if (sink != sink) return {sink, sink};
    const double larger = static_cast<double>(sink > top ? sink : top);
    const double shrink = __builtin_exp(static_cast<double>(top) - larger);
    const double all =
        static_cast<double>(weight) * shrink + __builtin_exp(static_cast<double>(sink) - larger);
    return {static_cast<float>(larger + __builtin_log(all)), static_cast<float>(shrink / all)};
  }
  if (weight == 0) return {-kInfinity, 0};
  const float share = 1.0f / weight;
  if (top == kInfinity) return {top, share};
  if (weight != weight || weight == kInfinity) return {weight, share};
  return {static_cast<float>(static_cast<double>(top) + natural_log(weight)), share};
}

/// reference: m in scores' units; weight: the sum of weights.
inline Total total_of(const ResultArgs& args, const ScoreUnits& units, std::int64_t head,
                      float reference, float weight) {
  const float sink = float_at(args.scores.sinks, head, -kInfinity);
  // Rounded before the logarithm is added, as backward rounds scores before it takes lse off.
  const float top = reference * static_cast<float>(units.size);
  return sum_up(top, weight, sink);
}

/// Row `row` of one head: divides O [v_head_dim in whole vectors] by the sum of weights, in place,
/// and stores out and lse.
inline void finish_row(const ResultArgs& args, const Place& place, std::int64_t row, Total total,
                       float* o) {
  const float share = total.share * args.scores.dropout.keep_scale;
  const std::int64_t width = args.shape.v_head_dim;
  // A share of 0, too: 0 times what is not finite must show, and O of rows without keys is 0.
  for (std::int64_t d = 0; d < width; d += kLanes) store(o + d, load(o + d) * splat(share));
  write_row(args.out, place, row, o);
  const Output& lse = args.lse;
  if (lse.data != nullptr)
    lse.data[place.batch * lse.batch + place.head * lse.head + (place.first_row + row) * lse.row] =
        total.lse;
}

}  // namespace
}  // namespace fovea::cpu
