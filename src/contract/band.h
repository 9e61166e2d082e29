// Band arithmetic: which keys a query sees, in saturating 64-bit integers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include <fovea/attention.h>

#include "contract/host_device.h"

namespace fovea {

FOVEA_HD constexpr std::int64_t saturating_add(std::int64_t a, std::int64_t b) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  if (b > 0 && a > kMax - b) return kMax;
  if (b < 0 && a < kMin - b) return kMin;
  return a + b;
}

/// A half-open range of positions.
struct Range {
  std::int64_t begin = 0, end = 0;
  FOVEA_HD constexpr bool empty() const { return begin >= end; }
  FOVEA_HD constexpr std::int64_t size() const { return empty() ? 0 : end - begin; }
};

/// A band resolved for one sequence's lengths: row i sees keys j with
/// i - below <= j <= i + above, both clamped to [0, kv_len).
struct ResolvedBand {
  std::int64_t below = kUnbounded;  ///< left - offset, or kUnbounded
  std::int64_t above = kUnbounded;  ///< right + offset, or kUnbounded
  std::int64_t kv_len = 0;

  /// Keys that row i sees.
  FOVEA_HD constexpr Range keys_of(std::int64_t i) const {
    Range range{0, kv_len};
    if (below != kUnbounded) range.begin = clamp(saturating_add(i, -below), kv_len);
    if (above != kUnbounded) range.end = clamp(saturating_add(saturating_add(i, above), 1), kv_len);
    if (range.end < range.begin) range.end = range.begin;
    return range;
  }

 private:
  FOVEA_HD static constexpr std::int64_t clamp(std::int64_t x, std::int64_t limit) {
    return x < 0 ? 0 : (x > limit ? limit : x);
  }
};

/// Distance of the diagonal: o in the formulas.
FOVEA_HD constexpr std::int64_t anchor_offset(Anchor anchor, std::int64_t q_len,
                                              std::int64_t kv_len) {
  return anchor == Anchor::bottom_right ? kv_len - q_len : 0;
}

/// The band of a sequence with these lengths (its own, also when packed or shortened).
constexpr ResolvedBand resolve(const std::optional<Band>& band, std::int64_t q_len,
                               std::int64_t kv_len) {
  ResolvedBand r;
  r.kv_len = kv_len;
  if (!band) return r;
  const std::int64_t offset = anchor_offset(band->anchor, q_len, kv_len);
  if (band->left != kUnbounded) r.below = saturating_add(band->left, -offset);
  if (band->right != kUnbounded) r.above = saturating_add(band->right, offset);
  return r;
}

}  // namespace fovea
