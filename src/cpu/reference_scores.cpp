// Visibility, scores, softmax and dropout of one row. The formulas stand in reference_scores.h.
#include "cpu/reference_scores.h"

#include <cfloat>
#include <cmath>
#include <limits>

namespace fovea::reference {
namespace {

/// Whether the mask shows (i, j), and what it adds.
struct MaskValue {
  bool visible = true;
  double bias = 0;
};

MaskValue mask_at(const HeadScores& head, std::int64_t i, std::int64_t j) {
  const TensorView& mask = head.problem.mask4;
  if (!mask.present()) return {};
  const std::int64_t place = place_of_mask(mask, head.sequence.batch, head.head, i, j);
  if (mask.dtype == DType::boolean) return {load_integer(mask, place) != 0, 0};
  const double bias = load(mask, place);
  return {bias != -std::numeric_limits<double>::infinity(), bias};
}

/// lse and probabilities of row.score; leaves probabilities 0 where lse is -inf.
template <class Real>
void softmax(const HeadScores& head, Row<Real>& row) {
  constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
  Real largest = head.has_sink ? static_cast<Real>(head.sink) : -kInfinity;
  for (std::int64_t n = 0; n < row.count; ++n) {
    if (std::isnan(row.score[n])) largest = row.score[n];
    if (row.score[n] > largest) largest = row.score[n];
  }
  if (std::isinf(largest)) {
    row.lse = largest;
    for (std::int64_t n = 0; n < row.count; ++n)
      row.probability[n] = largest < 0 ? Real{0} : std::exp(row.score[n] - largest);
    return;
  }
  Real sum = head.has_sink ? std::exp(static_cast<Real>(head.sink) - largest) : Real{0};
  for (std::int64_t n = 0; n < row.count; ++n) {
    row.probability[n] = std::exp(row.score[n] - largest);
    sum += row.probability[n];
  }
  for (std::int64_t n = 0; n < row.count; ++n) row.probability[n] /= sum;
  row.lse = largest + std::log(sum);
}

}  // namespace

HeadScores::HeadScores(const Problem& p, const Sequence& s, std::int64_t h)
    : problem(p), sequence(s), head(h), band(resolve(p.params.band, s.q_len, s.kv_len)) {
  const AttentionParams& a = p.params;
  if (const TensorView& slopes = a.alibi.slopes; slopes.present()) {
    slope = load(slopes, slopes.rank == 1 ? h * slopes.strides[0]
                                          : s.batch * slopes.strides[0] + h * slopes.strides[1]);
    alibi_offset = anchor_offset(a.alibi.anchor, s.q_len, s.kv_len);
  }
  if (a.sinks.present()) {
    sink = load(a.sinks, h * a.sinks.strides[0]);
    has_sink = sink != -std::numeric_limits<double>::infinity();
  }
  const Dropout& dropout = a.dropout;
  threshold = philox::threshold(dropout.probability);
  if (threshold == 0) return;
  drops = true;
  keep_scale = philox::keep_scale(threshold);
  const auto word = [](const TensorView& tensor, std::uint64_t otherwise) {
    return tensor.present() ? static_cast<std::uint64_t>(load_integer(tensor, 0)) : otherwise;
  };
  const TensorView& streams = dropout.streams;
  const std::int64_t id =
      streams.present()
          ? load_integer(streams, s.batch * streams.strides[0] + h * streams.strides[1])
          : s.batch * p.q_heads + h;
  stream = philox::make_stream(word(dropout.seed_tensor, dropout.seed),
                               dropout.offset + word(dropout.offset_tensor, 0),
                               static_cast<std::uint32_t>(id));
}

template <class Arithmetic>
void evaluate_row(const HeadScores& head, const Arithmetic& arithmetic, std::int64_t i,
                  const typename Arithmetic::Real* q, const typename Arithmetic::Real* k,
                  Row<typename Arithmetic::Real>& row) {
  using Real = typename Arithmetic::Real;
  const Problem& p = head.problem;
  const Dropout& dropout = p.params.dropout;
  const auto cap = static_cast<Real>(p.params.softcap);
  // -FLT_MAX / log2(e)
  constexpr auto kLowest = static_cast<Real>(-static_cast<double>(FLT_MAX) * 0.6931471805599453);

  row.count = 0;
  const Range keys = head.band.keys_of(i);
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const MaskValue mask = mask_at(head, i, j);
    if (!mask.visible) continue;
    const std::int64_t n = row.count++;
    row.key[n] = j;

    Real s = arithmetic.stored(static_cast<Real>(p.scale) * dot(q, k + j * p.head_dim, p.head_dim));
    row.softcap_slope[n] = 1;
    if (cap > 0) {
      const Real t = std::tanh(s / cap);
      s = cap * t;
      row.softcap_slope[n] = 1 - t * t;
    }
    const bool finite = std::isfinite(s) && std::isfinite(mask.bias) && std::isfinite(head.slope);
    s += static_cast<Real>(mask.bias);
    if (head.slope != 0) {
      const auto distance = static_cast<Real>(std::abs(i + head.alibi_offset - j));
      s -= static_cast<Real>(head.slope) * distance;
    }
    // In f32 a sum of finite numbers may be -inf: it counts as finite.
    row.score[n] = s < kLowest && (finite || std::isfinite(s)) ? kLowest : s;

    row.drop[n] = 1;
    if (head.drops) {
      const auto global_i = static_cast<std::uint64_t>(dropout.row_origin + i);
      const auto global_j = static_cast<std::uint64_t>(dropout.column_origin + j);
      const bool dropped = philox::decide(head.stream, global_i, global_j) < head.threshold;
      row.drop[n] = dropped ? Real{0} : static_cast<Real>(head.keep_scale);
    }
  }
  softmax(head, row);
}

template void evaluate_row(const HeadScores&, const Exact&, std::int64_t, const double*,
                           const double*, Row<double>&);
template void evaluate_row(const HeadScores&, const Unfused&, std::int64_t, const float*,
                           const float*, Row<float>&);

}  // namespace fovea::reference
