// Visibility, scores, softmax and dropout of one row. The formulas stand in reference_scores.h.
#include "cpu/reference_scores.h"

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
  Softmax<Real> sums{static_cast<Real>(head.sink)};
  for (std::int64_t n = 0; n < row.count; ++n) sums.largest = larger(sums.largest, row.score[n]);
  if (head.has_sink) sums.sum = sums.weight(static_cast<Real>(head.sink));
  for (std::int64_t n = 0; n < row.count; ++n) {
    row.probability[n] = sums.weight(row.score[n]);
    sums.sum += row.probability[n];
  }
  for (std::int64_t n = 0; n < row.count; ++n) row.probability[n] = sums.share(row.probability[n]);
  row.lse = sums.lse();
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
  drop.threshold = philox::threshold(dropout.probability);
  if (drop.threshold == 0) return;
  drop.row_origin = dropout.row_origin;
  drop.column_origin = dropout.column_origin;
  const auto word = [](const TensorView& tensor, std::uint64_t otherwise) {
    return tensor.present() ? static_cast<std::uint64_t>(load_integer(tensor, 0)) : otherwise;
  };
  const TensorView& streams = dropout.streams;
  const std::int64_t id =
      streams.present()
          ? load_integer(streams, s.batch * streams.strides[0] + h * streams.strides[1])
          : s.batch * p.q_heads + h;
  drop.stream = philox::make_stream(word(dropout.seed_tensor, dropout.seed),
                                    dropout.offset + word(dropout.offset_tensor, 0),
                                    static_cast<std::uint32_t>(id));
}

template <class Arithmetic>
void evaluate_row(const HeadScores& head, const Arithmetic& arithmetic, std::int64_t i,
                  const typename Arithmetic::Real* q, const typename Arithmetic::Real* k,
                  Row<typename Arithmetic::Real>& row) {
  using Real = typename Arithmetic::Real;
  const Problem& p = head.problem;
  row.count = 0;
  const Range keys = head.band.keys_of(i);
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const MaskValue mask = mask_at(head, i, j);
    if (!mask.visible) continue;
    const std::int64_t n = row.count++;
    row.key[n] = j;

    const Real product =
        arithmetic.stored(static_cast<Real>(p.scale) * dot(q, k + j * p.head_dim, p.head_dim));
    const Score<Real> s =
        score_of(product, p.params.softcap, mask.bias, head.slope, i + head.alibi_offset - j);
    row.score[n] = s.value;
    row.softcap_slope[n] = s.cap_slope;
    row.drop[n] = static_cast<Real>(head.drop.at(i, j));
  }
  softmax(head, row);
}

template void evaluate_row(const HeadScores&, const Exact&, std::int64_t, const double*,
                           const double*, Row<double>&);
template void evaluate_row(const HeadScores&, const Unfused&, std::int64_t, const float*,
                           const float*, Row<float>&);

}  // namespace fovea::reference
