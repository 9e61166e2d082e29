// The formulas of docs/maths.md as the oracles evaluate them, each once. cpu.reference,
// cpu.baseline and cuda.reference differ in where elements lie and in who computes which row, not
// in what is computed from them. Shared by host and device. Real is f64 in the oracles, f32 in the
// baseline.
#pragma once

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>

#include "contract/elements.h"
#include "contract/host_device.h"
#include "contract/philox.h"

namespace fovea::reference {

// Elements: every float dtype is read exactly and written with one rounding.

/// x in f32, rounded to odd: a further rounding to a format at least two bits narrower then gives
/// the same result as one rounding of x.
FOVEA_HD inline float narrow_to_odd(double x) {
  const auto nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) == x || x != x) return nearest;
  if ((std::bit_cast<std::uint32_t>(nearest) & 1u) != 0) return nearest;
  const float towards = static_cast<double>(nearest) < x ? HUGE_VALF : -HUGE_VALF;
  return ::nextafterf(nearest, towards);
}

/// x rounded once, to nearest even, to a float dtype.
FOVEA_HD inline double round_to(DType dtype, double x) {
  switch (dtype) {
    case DType::f32:
      return static_cast<double>(static_cast<float>(x));
    case DType::f16:
      return static_cast<double>(to_f32(to_f16(narrow_to_odd(x))));
    case DType::bf16:
      return static_cast<double>(to_f32(to_bf16(narrow_to_odd(x))));
    default:
      return x;
  }
}

/// Element n of float memory becomes x, rounded once.
FOVEA_HD inline void store_rounded(void* data, DType dtype, std::int64_t n, double x) {
  store_element(data, dtype, n, round_to(dtype, x));
}

/// Elements offset, offset + stride, ... of float memory.
struct Elements {
  const void* data = nullptr;
  DType dtype = DType::none;
  std::int64_t offset = 0, stride = 0;

  [[nodiscard]] FOVEA_HD double at(std::int64_t n) const {
    return load_element(data, dtype, offset + n * stride);
  }
};

/// sum a_d b_d in 16 partial sums.
template <class Real>
FOVEA_HD Real dot(const Real* a, const Real* b, std::int64_t n) {
  constexpr std::int64_t kWidth = 16;
  Real lanes[kWidth] = {};
  std::int64_t d = 0;
  for (; d + kWidth <= n; d += kWidth)
    for (std::int64_t lane = 0; lane < kWidth; ++lane) lanes[lane] += a[d + lane] * b[d + lane];
  for (std::int64_t lane = 0; lane < kWidth; ++lane)
    if (d + lane < n) lanes[lane] += a[d + lane] * b[d + lane];
  Real sum = 0;
  for (const Real lane : lanes) sum += lane;
  return sum;
}

// Scores.

template <class Real>
struct Score {
  Real value;
  Real cap_slope;  ///< d softcap(x) / dx
};

/// softcap(product) + bias - slope distance, product being scale q^_i.k^_j; a finite sum is raised
/// to -FLT_MAX / log2(e).
template <class Real>
FOVEA_HD Score<Real> score_of(Real product, double softcap, double bias, double slope,
                              std::int64_t distance) {
  constexpr auto kLowest = static_cast<Real>(-static_cast<double>(FLT_MAX) * 0.6931471805599453);
  const auto cap = static_cast<Real>(softcap);
  Score<Real> s{product, 1};
  if (cap > 0) {
    const Real t = std::tanh(s.value / cap);
    s.value = cap * t;
    s.cap_slope = 1 - t * t;
  }
  const bool finite = std::isfinite(s.value) && std::isfinite(bias) && std::isfinite(slope);
  s.value += static_cast<Real>(bias);
  if (slope != 0) s.value -= static_cast<Real>(slope) * static_cast<Real>(std::abs(distance));
  // In f32 a sum of finite numbers may be -inf: it counts as finite.
  if (s.value < kLowest && (finite || std::isfinite(s.value))) s.value = kLowest;
  return s;
}

/// The larger; NaN where either is.
template <class Real>
FOVEA_HD Real larger(Real a, Real b) {
  return b != b || b > a ? b : a;
}

/// Softmax of one row: first its largest score, the sink among them, then the sum of its weights.
///   p_j = exp(s_j - largest) / sum,  lse = largest + log(sum)
template <class Real>
struct Softmax {
  static constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
  Real largest = -kInfinity;
  Real sum = 0;

  /// Whether lse is -inf: every p is 0.
  [[nodiscard]] FOVEA_HD bool empty() const { return largest == -kInfinity; }
  [[nodiscard]] FOVEA_HD Real weight(Real score) const {
    return empty() ? Real{0} : std::exp(score - largest);
  }
  /// p of a weight, or what the p of several add up to.
  [[nodiscard]] FOVEA_HD Real share(Real weight) const {
    return std::isinf(largest) ? weight : weight / sum;
  }
  [[nodiscard]] FOVEA_HD Real lse() const {
    return std::isinf(largest) ? largest : largest + std::log(sum);
  }
};

/// drop(i,j) of one (batch, head).
struct DropFactors {
  philox::Stream stream{};
  std::uint32_t threshold = 0;  ///< 0: off
  std::int64_t row_origin = 0, column_origin = 0;

  [[nodiscard]] FOVEA_HD double at(std::int64_t i, std::int64_t j) const {
    if (threshold == 0) return 1;
    const auto row = static_cast<std::uint64_t>(row_origin + i);
    const auto column = static_cast<std::uint64_t>(column_origin + j);
    return philox::decide(stream, row, column) < threshold ? 0 : philox::keep_scale(threshold);
  }
};

// Gradients of scores; dp(i,j) = drop(i,j) dout_i.v^_j, delta_i = sum_j p(i,j) dp(i,j).

/// ds(i,j)
template <class Real>
FOVEA_HD Real score_gradient(Real p, Real dp, Real delta, Real dlse) {
  return p * (dp - delta + dlse);
}

/// What row i adds to the sink's gradient.
template <class Real>
FOVEA_HD Real sink_gradient(Real sink, Real lse, Real delta, Real dlse) {
  return std::exp(sink - lse) * (dlse - delta);
}

// The prologue of a row x, and the way back for its gradient.

/// 1 / sqrt(mean(x^2) + eps)
template <class Real>
FOVEA_HD Real inverse_rms(const Real* x, std::int64_t dim, double eps) {
  const Real mean_square = dot(x, x, dim) / static_cast<Real>(dim);
  return 1 / std::sqrt(mean_square + static_cast<Real>(eps));
}

/// The norm's weights; absent: ones.
template <class Real>
FOVEA_HD Real weight_at(const Elements& weights, std::int64_t d) {
  return weights.data == nullptr ? Real{1} : static_cast<Real>(weights.at(d));
}

/// x <- x w / rms(x)
template <class Real>
FOVEA_HD void normalise(std::int64_t dim, double eps, const Elements& weights, Real* x) {
  const Real r = inverse_rms(x, dim, eps);
  for (std::int64_t d = 0; d < dim; ++d) x[d] *= r * weight_at<Real>(weights, d);
}

/// dy -> dx, and terms_d = r x_d dy_d, which the weights' gradients are sums of; null: not wanted.
template <class Real>
FOVEA_HD void reverse_normalise(const Real* x, std::int64_t dim, double eps,
                                const Elements& weights, Real* gradient, Real* terms) {
  const Real r = inverse_rms(x, dim, eps);
  for (std::int64_t d = 0; terms != nullptr && d < dim; ++d) terms[d] = r * (x[d] * gradient[d]);
  for (std::int64_t d = 0; d < dim; ++d) gradient[d] *= weight_at<Real>(weights, d);
  const Real along = dot(x, gradient, dim) * r * r / static_cast<Real>(dim);
  for (std::int64_t d = 0; d < dim; ++d) gradient[d] = r * (gradient[d] - x[d] * along);
}

/// RoPE at one position.
struct Rotation {
  Elements cos, sin;  ///< the position's row of either table
  std::int64_t rotary_dim = 0;
  bool interleaved = false;  ///< pairs (2i, 2i + 1), else (i, i + rotary_dim / 2)
  bool duplicated = false;   ///< a pair's value stands at the place of either element
};

/// x <- R x, or x <- R^T x.
template <class Real>
FOVEA_HD void rotate(const Rotation& r, bool transpose, Real* x) {
  const std::int64_t pairs = r.rotary_dim / 2;
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    const std::int64_t first = r.interleaved ? 2 * pair : pair;
    const std::int64_t second = r.interleaved ? 2 * pair + 1 : pair + pairs;
    const std::int64_t entry = r.duplicated ? first : pair;
    const auto cos = static_cast<Real>(r.cos.at(entry));
    auto sin = static_cast<Real>(r.sin.at(entry));
    if (transpose) sin = -sin;
    const Real a = x[first], c = x[second];
    x[first] = a * cos - c * sin;
    x[second] = a * sin + c * cos;
  }
}

}  // namespace fovea::reference
