// Scores of cuda.reference, in f64: which pairs (i, j) are visible, their s(i,j), and what a warp
// needs to walk over them. For kernel sources; the formulas stand in contract/reference_formulas.h.
#pragma once

#include "cuda/device/thread.h"
#include "cuda/reference_args.h"
#include "cuda/reference_elements.h"
#include "cuda/row_tiles.h"

namespace fovea::cuda::FOVEA_WORLD {
namespace {

/// One query head of one sequence, and the rows that it reads.
struct QueryHead {
  plain::Sequence sequence;
  std::int64_t head = 0;
  std::int64_t first_query = 0;  ///< place of row 0 among the query rows
  const double* q = nullptr;     ///< [q_len, head_dim]
  const double* k = nullptr;     ///< [kv_len, head_dim]
  const double* v = nullptr;     ///< [kv_len, v_head_dim]
  plain::Band band{};
  double slope = 0;
  std::int64_t diagonal = 0;  ///< o of ALiBi
  double sink = 0;            ///< -inf: none
  reference::DropFactors drop;

  /// Keys that band and lengths let row i see.
  [[nodiscard]] FOVEA_DEVICE plain::Span keys_of(std::int64_t i) const {
    return plain::meet(band.keys_of(i), {0, sequence.kv_len});
  }
  /// Rows that see key j so.
  [[nodiscard]] FOVEA_DEVICE plain::Span rows_of(std::int64_t j) const {
    return plain::meet(band.rows_of_some({j, j + 1}), {0, sequence.q_len});
  }
};

FOVEA_DEVICE QueryHead query_head(const ReferenceArgs& args, const plain::Sequence& s,
                                  std::int64_t head) {
  const plain::Shape& shape = args.shape;
  const plain::ScoreArgs& scores = args.scores;
  const std::int64_t kv_head = head / (shape.q_heads / shape.kv_heads);
  const std::int64_t first_key = rows_by_keys(args).place({s.batch, kv_head, s.k_begin}, 0);
  QueryHead h;
  h.sequence = s;
  h.head = head;
  h.first_query = rows_by_queries(args).place({s.batch, head, s.q_begin}, 0);
  h.q = args.q_rows + h.first_query * shape.head_dim;
  h.k = args.k_rows + first_key * shape.head_dim;
  h.v = args.v_rows + first_key * shape.v_head_dim;
  h.band = plain::band_of(args.band, s);
  if (scores.slopes.data != nullptr) {
    reference::Elements slopes = elements_of(scores.slopes);
    slopes.offset = s.batch * scores.slopes_batch;
    h.slope = slopes.at(head);
    h.diagonal = scores.slopes_bottom_right ? s.kv_len - s.q_len : 0;
  }
  h.sink = scores.sinks.data != nullptr ? elements_of(scores.sinks).at(head)
                                        : -reference::Softmax<double>::kInfinity;
  const plain::DropoutArgs& dropout = scores.dropout;
  h.drop.threshold = dropout.threshold;
  if (dropout.threshold > 0)
    h.drop.stream = plain::stream_of(dropout, s.batch, head, shape.q_heads);
  h.drop.row_origin = dropout.row_origin;
  h.drop.column_origin = dropout.column_origin;
  return h;
}

/// Whether i sees j, and its score.
struct Pair {
  bool visible = false;
  reference::Score<double> score{};
};

/// j: one of keys_of(i).
FOVEA_DEVICE Pair pair_at(const ReferenceArgs& args, const QueryHead& h, std::int64_t i,
                          std::int64_t j) {
  const plain::MaskArgs& mask = args.scores.mask;
  double bias = 0;
  if (mask.data != nullptr) {
    const std::int64_t at =
        h.sequence.batch * mask.batch + h.head * mask.head + i * mask.row + j * mask.column;
    if (mask.additive)
      bias = element_at(mask.data, mask.element, at);
    else if (static_cast<const std::uint8_t*>(mask.data)[at] == 0)
      return {};
    if (bias == -reference::Softmax<double>::kInfinity) return {};
  }
  const std::int64_t width = args.shape.head_dim;
  const double product = args.scale * reference::dot(h.q + i * width, h.k + j * width, width);
  return {true, reference::score_of(product, args.softcap, bias, h.slope, i + h.diagonal - j)};
}

/// The largest score of row i, the sink among them. All lanes of the warp take part.
FOVEA_DEVICE double largest_score(const ReferenceArgs& args, const QueryHead& h, std::int64_t i) {
  const plain::Span keys = h.keys_of(i);
  double largest = h.sink;
  for (std::int64_t j = keys.begin + lane(); j < keys.end; j += 32) {
    const Pair pair = pair_at(args, h, i, j);
    if (pair.visible) largest = reference::larger(largest, pair.score.value);
  }
  for (int mask = 16; mask > 0; mask >>= 1)
    largest = reference::larger(largest, shuffle_xor(largest, mask));
  return largest;
}

/// A row of sums of up to 512 columns, of which lane l holds l, l + 32, ...
struct WarpRow {
  static constexpr int kColumns = 16;
  double at[kColumns] = {};

  /// += factor x
  FOVEA_DEVICE void add(double factor, const double* x, std::int64_t width) {
    FOVEA_UNROLL
    for (int n = 0; n < kColumns; ++n) {
      const int column = n * 32 + lane();
      if (column < width) at[n] += factor * x[column];
    }
  }
  /// store(column, sum) for each column.
  template <class Store>
  FOVEA_DEVICE void each(std::int64_t width, Store&& store) const {
    FOVEA_UNROLL
    for (int n = 0; n < kColumns; ++n) {
      const int column = n * 32 + lane();
      if (column < width) store(column, at[n]);
    }
  }
};

/// work(head, i) for each query row, by a warp.
template <class Work>
FOVEA_DEVICE void for_each_query(const ReferenceArgs& args, Work&& work) {
  const plain::Shape& shape = args.shape;
  for_each_warp_task(query_tasks(shape), [&](std::int64_t task) {
    const std::int64_t pair = task / shape.q_len, i = task % shape.q_len;
    const plain::Sequence s = sequence_by_warp(shape, args.lengths, pair / shape.q_heads);
    if (i < s.q_len) work(query_head(args, s, pair % shape.q_heads), i);
  });
}

}  // namespace
}  // namespace fovea::cuda::FOVEA_WORLD
