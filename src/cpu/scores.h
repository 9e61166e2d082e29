// What stands between the product and the softmax: the score of (i, j), and whether i sees j.
//
//   s = softcap(scale q_i.k_j) + mask(i,j) - slope |i + o - j|      softcap(x) = c tanh(x / c)
//
// A finite s is raised to -FLT_MAX / log2(e) at least. Forward and backward compute s alike, to the
// last bit. Tiles have keys down and 64 queries across in forward ("across"), queries down and 64
// keys across in backward ("along"); visibility is one word a row of the tile.
#pragma once

#include "cpu/tile_bits.h"

namespace fovea::cpu {
namespace {

/// How much of a tile is visible.
enum class Cover { none, some, all };

/// The scores of one head of one sequence.
class Scores {
 public:
  Scores() = default;
  Scores(const FlashArgs& args, const Sequence& s, std::int64_t head)
      : args_(&args.scores), band_(band_of(args.band, s)) {
    const MaskArgs& mask = args.scores.mask;
    scale_ = static_cast<float>(args.scale);
    if (mask.data != nullptr) {
      const std::int64_t size = mask.additive ? size_of(mask.element) : 1;
      mask_ =
          static_cast<const char*>(mask.data) + (s.batch * mask.batch + head * mask.head) * size;
    }
    slope_ = float_at_batch(args.scores.slopes, args.scores.slopes_batch, s.batch, head);
    sloped_ = args.scores.slopes.data != nullptr && slope_ != 0;
    if (sloped_ && !(slope_ - slope_ == 0)) least_ = -kInfinity;
    offset_ = args.scores.slopes_bottom_right ? s.kv_len - s.q_len : 0;
  }

  const Band& band() const { return band_; }
  /// Whether scores are more than scale q.k, so that bend_* must be called.
  bool bent() const { return args_->softcap > 0 || biased() || sloped_; }
  bool masked() const { return mask_ != nullptr; }
  bool biased() const { return mask_ != nullptr && args_->mask.additive; }
  bool capped() const { return args_->softcap > 0; }

  /// seen[j]: which of the rows see key keys.begin + j. Fills bias [keys, kScoresRow] where there
  /// is an additive mask. At most kForwardKeys keys.
  Cover see_across(Span rows, Span keys, float* bias, std::uint64_t* seen) const {
    const std::int64_t n = keys.end - keys.begin;
    const std::uint64_t every = first_bits(rows.end - rows.begin);
    if (covers(band_.keys_of_every(rows), keys)) {
      if (!masked()) return Cover::all;
      for (std::int64_t j = 0; j < n; ++j) seen[j] = every;
    } else {
      for (std::int64_t j = 0; j < n; ++j) {
        const std::int64_t key = keys.begin + j;
        const Span some = band_.rows_of_some({key, key + 1});
        seen[j] = every & bits_within(some, rows.begin);
      }
    }
    if (biased()) {
      load_bias_across(rows, keys, bias);
      for (std::int64_t j = 0; j < n; ++j) seen[j] &= bits_of_bias(bias + j * kScoresRow);
    } else if (masked()) {
      mask_across(rows, keys, seen);
    }
    return cover(seen, n, every);
  }

  /// seen[i]: which of at most 64 keys row rows.begin + i sees. Fills bias [rows, 64] where there
  /// is an additive mask.
  Cover see_along(Span rows, Span keys, float* bias, std::uint64_t* seen) const {
    const std::int64_t n = rows.end - rows.begin;
    const std::uint64_t every = first_bits(keys.end - keys.begin);
    if (covers(band_.keys_of_every(rows), keys)) {
      if (!masked()) return Cover::all;
      for (std::int64_t i = 0; i < n; ++i) seen[i] = every;
    } else {
      for (std::int64_t i = 0; i < n; ++i) {
        const Span some = band_.keys_of(rows.begin + i);
        seen[i] = every & bits_within(some, keys.begin);
      }
    }
    if (biased()) {
      for (std::int64_t i = 0; i < n; ++i) {
        float* to = bias + i * kPanel;
        load_bias_row(rows.begin + i, keys, to);
        seen[i] &= bits_of_bias(to);
      }
    } else if (masked()) {
      const std::int64_t step = args_->mask.column;
      for (std::int64_t i = 0; i < n; ++i)
        seen[i] &= bits_of_bytes(mask_row(rows.begin + i, keys.begin), step, keys.end - keys.begin);
    }
    return cover(seen, n, every);
  }

  /// q.k -> s for a tile of keys and 64 queries.
  void bend_across(Span rows, Span keys, const float* bias, float* scores) const {
    with_features([&](auto caps, auto adds, auto slopes) {
      float* s = scores;
      for (std::int64_t j = keys.begin; j < keys.end; ++j, s += kScoresRow, bias += kScoresRow) {
        const auto far = static_cast<float>(rows.begin + offset_ - j);
        for (int x = 0; x < kPanel; x += kLanes) {
          Vec cap_slope;
          store(s + x, bend<caps.value, adds.value, slopes.value>(
                           load(s + x), bias + x, lane_numbers(x) + splat(far), cap_slope));
        }
      }
    });
  }

  /// q.k -> s of row i and the 64 keys from `key` on. cap_slopes: softcap' [64], where
  /// there is one.
  void bend_along(std::int64_t i, std::int64_t key, const float* bias, float* s,
                  float* cap_slopes) const {
    with_features([&](auto caps, auto adds, auto slopes) {
      const auto far = static_cast<float>(i + offset_ - key);
      for (int x = 0; x < kPanel; x += kLanes) {
        Vec cap_slope;
        store(s + x, bend<caps.value, adds.value, slopes.value>(
                         load(s + x), bias + x, splat(far) - lane_numbers(x), cap_slope));
        if constexpr (caps.value) store(cap_slopes + x, cap_slope);
      }
    });
  }

 private:
  template <bool kValue>
  struct Bool {
    static constexpr bool value = kValue;
  };
  template <class Work>
  FOVEA_INLINE void with_features(Work work) const {
    const auto slopes = [&](auto caps, auto adds) {
      sloped_ ? work(caps, adds, Bool<true>{}) : work(caps, adds, Bool<false>{});
    };
    const auto adds = [&](auto caps) {
      biased() ? slopes(caps, Bool<true>{}) : slopes(caps, Bool<false>{});
    };
    capped() ? adds(Bool<true>{}) : adds(Bool<false>{});
  }

  template <bool kCaps, bool kAdds, bool kSlopes>
  FOVEA_INLINE Vec bend(Vec product, const float* bias, Vec distance, Vec& cap_slope) const {
    Vec s = product * splat(scale_);
    if constexpr (kCaps) {
      const Vec t = tanh(s / splat(args_->softcap));
      s = t * splat(args_->softcap);
      cap_slope = splat(1) - t * t;
    }
    if constexpr (kAdds) s = s + load(bias);
    if constexpr (kSlopes) s = fma(splat(-slope_), absolute(distance), s);
    // A sum of finite numbers counts as finite.
    const Mask low = both(less(s, splat(least_)), less(absolute(product), splat(kInfinity)));
    return select(low, splat(least_), s);
  }
  FOVEA_INLINE static Vec lane_numbers(int first) {
    float x[kLanes];
    for (int n = 0; n < kLanes; ++n) x[n] = static_cast<float>(first + n);
    return load(x);
  }

  /// A span, which may be without limits, as the bits of 64 places from `first` on.
  static std::uint64_t bits_within(Span span, std::int64_t first) {
    return bits_between(clamp(span.begin, first, first + kPanel) - first,
                        clamp(span.end, first, first + kPanel) - first);
  }

  static Cover cover(const std::uint64_t* seen, std::int64_t n, std::uint64_t every) {
    std::uint64_t some = 0, all = every;
    for (std::int64_t x = 0; x < n; ++x) {
      some |= seen[x];
      all &= seen[x];
    }
    return some == 0 ? Cover::none : all == every ? Cover::all : Cover::some;
  }

  static float float_at_batch(const Floats& x, std::int64_t x_batch, std::int64_t b,
                              std::int64_t h) {
    if (x.data == nullptr) return 0;
    const auto* data = static_cast<const char*>(x.data) + b * x_batch * size_of(x.element);
    return float_at({data, x.element, x.stride}, h, 0);
  }

  const unsigned char* mask_row(std::int64_t i, std::int64_t key) const {
    const std::int64_t size = biased() ? size_of(args_->mask.element) : 1;
    return reinterpret_cast<const unsigned char*>(mask_) +
           (i * args_->mask.row + key * args_->mask.column) * size;
  }

  void mask_across(Span rows, Span keys, std::uint64_t* seen) const {
    const std::int64_t step = args_->mask.column;
    for (std::int64_t j = keys.begin; j < keys.end; j += 64) {
      const std::int64_t n = lesser(64, keys.end - j);
      std::uint64_t* to = seen + (j - keys.begin);
      if (args_->mask.row == 0) {
        const std::uint64_t bits = bits_of_bytes(mask_row(0, j), step, n);
        for (std::int64_t x = 0; x < n; ++x)
          if ((bits >> x & 1) == 0) to[x] = 0;
        continue;
      }
      std::uint64_t block[64] = {};
      for (std::int64_t i = rows.begin; i < rows.end; ++i)
        block[i - rows.begin] = bits_of_bytes(mask_row(i, j), step, n);
      transpose_bits(block);
      for (std::int64_t x = 0; x < n; ++x) to[x] &= block[x];
    }
  }

  /// A finite bias stays finite in f32.
  void widen_bias(std::int64_t i, Span keys, float* to) const {
    const std::int64_t n = keys.end - keys.begin;
    widen_row(args_->mask.element, mask_row(i, keys.begin), args_->mask.column, n, to);
    if (args_->mask.element != Element::f64) return;
    for (std::int64_t x = 0; x < n; ++x) {
      if (to[x] - to[x] == 0) continue;
      double bias;
      __builtin_memcpy(&bias, mask_row(i, keys.begin + x), sizeof bias);
      if (bias - bias == 0) to[x] = bias < 0 ? -kFloatMax : kFloatMax;
    }
  }

  /// Elements of the additive mask for row i and at most 64 keys; 0 behind them.
  void load_bias_row(std::int64_t i, Span keys, float* to) const {
    const std::int64_t n = keys.end - keys.begin;
    widen_bias(i, keys, to);
    for (std::int64_t x = n; x < kPanel; ++x) to[x] = 0;
  }

  void load_bias_across(Span rows, Span keys, float* bias) const {
    constexpr std::int64_t kWidth = kForwardKeys;
    alignas(64) float strip[kLanes * kWidth] = {};
    const std::int64_t n = keys.end - keys.begin;
    const bool same = args_->mask.row == 0;
    for (std::int64_t x = 0; x < kPanel; x += kLanes) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        const std::int64_t i =
            rows.begin + (same ? 0 : lesser(x + lane, rows.end - rows.begin - 1));
        if (same && x + lane > 0) break;
        widen_bias(i, keys, strip + lane * kWidth);
      }
      if (same) {
        for (std::int64_t j = 0; j < n; ++j) store(bias + j * kScoresRow + x, splat(strip[j]));
        continue;
      }
      for (std::int64_t j = 0; j < n; j += kLanes)
        transpose_block(strip + j, kWidth, bias + j * kScoresRow + x, kScoresRow);
    }
  }

  const ScoreArgs* args_ = nullptr;
  Band band_{INT64_MAX, INT64_MAX};
  const char* mask_ = nullptr;  ///< of this head
  float scale_ = 1, slope_ = 0;
  float least_ = static_cast<float>(-static_cast<double>(kFloatMax) / kLog2e);
  bool sloped_ = false;
  std::int64_t offset_ = 0;
};

}  // namespace
}  // namespace fovea::cpu
