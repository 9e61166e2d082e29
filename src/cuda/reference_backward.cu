// cuda.reference.backward, the kernels: gradients in f64 as the formulas are written.
//
//   dp(i,j) = drop(i,j) dout_i.v^_j,  delta_i = sum_j p(i,j) dp(i,j)
//   ds(i,j) = p(i,j) (dp(i,j) - delta_i + dlse_i)
//   dq^_i   = scale sum_j ds softcap' k^_j,  dk^_j = scale sum_i ds softcap' q^_i
//   dv_j    = sum_i p drop dout_i,  dmask = ds summed over the dimensions it is broadcast over
//   dsink   = sum_i exp(sink - lse_i) (dlse_i - delta_i)
//
// As the CPU's oracle, it computes lse and p anew and reads nothing that forward saved.
//
//   dq      a warp owns a query row: largest score; sum and delta, which it leaves behind; dq^
//   dk, dv  a warp owns a key row and walks over the rows of its group's query heads
//   dsinks  a warp owns a head and adds up what rows left
//   dmask   a warp owns an element and walks over what it is broadcast to
//
// Every sum has one owner and one order: no atomics, and the same bits in every run. Shapes, budget
// and domain as in reference_forward.cu. It has not run on a GPU yet.
#include "cuda/reference_scores.h"

namespace fovea::cuda::FOVEA_WORLD {
namespace {

/// drop(i,j) dout_i.v^_j
FOVEA_DEVICE double value_gradient(const ReferenceBackwardArgs& args, const QueryHead& head,
                                   std::int64_t i, std::int64_t j) {
  const std::int64_t width = args.shape.v_head_dim;
  const double* dout = args.dout_rows + (head.first_query + i) * width;
  return reference::dot(dout, head.v + j * width, width) * head.drop.at(i, j);
}

struct PairGradient {
  bool visible = false;
  double ds = 0;
  double dx = 0;      ///< times softcap': of scale q^.k^
  double weight = 0;  ///< p drop
};

FOVEA_DEVICE PairGradient gradient_at(const ReferenceBackwardArgs& args, const QueryHead& head,
                                      const ReferenceRow& row, std::int64_t i, std::int64_t j) {
  if (row.softmax.empty()) return {};
  const Pair pair = pair_at(args, head, i, j);
  if (!pair.visible) return {};
  const double p = row.softmax.share(row.softmax.weight(pair.score.value));
  const double ds =
      reference::score_gradient(p, value_gradient(args, head, i, j), row.delta, row.dlse);
  return {true, ds, ds * pair.score.cap_slope, p * head.drop.at(i, j)};
}

/// Softmax and delta of row i. All lanes of the warp take part.
FOVEA_DEVICE ReferenceRow row_of(const ReferenceBackwardArgs& args, const QueryHead& head,
                                 std::int64_t i) {
  ReferenceRow row;
  row.softmax.largest = largest_score(args, head, i);
  if (args.dlse.at.data != nullptr)
    row.dlse = element_at(args.dlse.at.data, args.dlse.element,
                          args.dlse.place(head.sequence, head.head, i));
  if (row.softmax.empty()) return row;
  const plain::Span keys = head.keys_of(i);
  double sum = 0, weighted = 0;
  for (std::int64_t j = keys.begin + lane(); j < keys.end; j += 32) {
    const Pair pair = pair_at(args, head, i, j);
    if (!pair.visible) continue;
    const double weight = row.softmax.weight(pair.score.value);
    sum += weight;
    weighted += weight * value_gradient(args, head, i, j);
  }
  row.softmax.sum = sum_warp(sum) + row.softmax.weight(head.sink);
  row.delta = row.softmax.share(sum_warp(weighted));
  return row;
}

FOVEA_DEVICE void backward_queries(const ReferenceBackwardArgs& args) {
  const std::int64_t width = args.shape.head_dim;
  for_each_query(args, [&](const QueryHead& head, std::int64_t i) {
    const ReferenceRow row = row_of(args, head, i);
    const plain::Span keys = head.keys_of(i);
    WarpRow dq;
    for (std::int64_t first = keys.begin; first < keys.end; first += 32) {
      const std::int64_t j = first + lane();
      PairGradient pair;
      if (j < keys.end) pair = gradient_at(args, head, row, i, j);
      const std::uint32_t seen = ballot(pair.visible);
      for (int n = 0; n < 32; ++n)
        if ((seen >> n & 1) != 0) dq.add(shuffle(pair.dx, n), head.k + (first + n) * width, width);
    }
    const std::int64_t place = head.first_query + i;
    dq.each(width, [&](std::int64_t column, double x) {
      args.dq[place * width + column] = args.scale * x;
    });
    if (lane() != 0) return;
    args.rows[place] = row;
    if (args.dsink_terms == nullptr) return;
    const bool some = head.sink != -reference::Softmax<double>::kInfinity;
    args.dsink_terms[place] =
        some ? reference::sink_gradient(head.sink, row.softmax.lse(), row.delta, row.dlse) : 0;
  });
}

FOVEA_DEVICE void backward_keys(const ReferenceBackwardArgs& args) {
  const plain::Shape& shape = args.shape;
  const std::int64_t group = shape.q_heads / shape.kv_heads, width = shape.head_dim,
                     v_width = shape.v_head_dim;
  for_each_warp_task(key_tasks(shape), [&](std::int64_t task) {
    const std::int64_t kv_head = task / shape.kv_len % shape.kv_heads, j = task % shape.kv_len;
    const plain::Sequence s =
        sequence_by_warp(shape, args.lengths, task / shape.kv_len / shape.kv_heads);
    if (j >= s.kv_len) return;
    WarpRow dk, dv;
    for (std::int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      const QueryHead head = query_head(args, s, h);
      const double* dout = args.dout_rows + head.first_query * v_width;
      const plain::Span rows = head.rows_of(j);
      for (std::int64_t first = rows.begin; first < rows.end; first += 32) {
        const std::int64_t i = first + lane();
        PairGradient pair;
        if (i < rows.end) pair = gradient_at(args, head, args.rows[head.first_query + i], i, j);
        const std::uint32_t seen = ballot(pair.visible);
        for (int n = 0; n < 32; ++n) {
          if ((seen >> n & 1) == 0) continue;
          dk.add(shuffle(pair.dx, n), head.q + (first + n) * width, width);
          dv.add(shuffle(pair.weight, n), dout + (first + n) * v_width, v_width);
        }
      }
    }
    const std::int64_t place = rows_by_keys(args).place({s.batch, kv_head, s.k_begin}, j);
    dk.each(width, [&](std::int64_t column, double x) {
      args.dk[place * width + column] = args.scale * x;
    });
    dv.each(v_width, [&](std::int64_t column, double x) { args.dv[place * v_width + column] = x; });
  });
}

FOVEA_DEVICE void sum_dsinks(const ReferenceBackwardArgs& args) {
  const plain::Shape& shape = args.shape;
  const RowSpace queries = rows_by_queries(args);
  for_each_warp_task(shape.q_heads, [&](std::int64_t h) {
    double sum = 0;
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      const plain::Sequence s = sequence_by_warp(shape, args.lengths, b);
      const std::int64_t first = queries.place({b, h, s.q_begin}, 0);
      for (std::int64_t i = lane(); i < s.q_len; i += 32) sum += args.dsink_terms[first + i];
    }
    sum = sum_warp(sum);
    if (lane() == 0) store(args.dsinks.data, args.dsinks.element, h * args.dsinks.stride, sum);
  });
}

/// Digits of n in a number system of four bases.
struct Index4 {
  std::int64_t at[4];
};
FOVEA_DEVICE Index4 index_of(std::int64_t n, const std::int64_t (&sizes)[4]) {
  Index4 index;
  FOVEA_UNROLL
  for (int d = 3; d >= 0; --d) {
    index.at[d] = n % sizes[d];
    n /= sizes[d];
  }
  return index;
}

FOVEA_DEVICE void backward_mask(const ReferenceBackwardArgs& args) {
  const plain::Shape& shape = args.shape;
  const plain::MaskSink& to = args.dmask;
  // dimensions that an element of the mask is broadcast to
  const std::int64_t all[4] = {shape.batch, shape.q_heads, shape.q_len, shape.kv_len};
  std::int64_t others[4], copies = 1;
  FOVEA_UNROLL
  for (int d = 0; d < 4; ++d) {
    others[d] = to.sizes[d] == 1 ? all[d] : 1;
    copies *= others[d];
  }
  for_each_warp_task(dmask_tasks(to), [&](std::int64_t task) {
    const Index4 own = index_of(task, to.sizes);
    double sum = 0;
    for (std::int64_t n = lane(); n < copies; n += 32) {
      const Index4 other = index_of(n, others);
      // One of the two is 0 in every dimension.
      const std::int64_t b = own.at[0] + other.at[0], h = own.at[1] + other.at[1];
      const std::int64_t i = own.at[2] + other.at[2], j = own.at[3] + other.at[3];
      const plain::Sequence s = plain::sequence_of(args, b);
      if (i >= s.q_len) continue;
      const QueryHead head = query_head(args, s, h);
      const plain::Span keys = head.keys_of(i);
      if (j < keys.begin || j >= keys.end) continue;
      sum += gradient_at(args, head, args.rows[head.first_query + i], i, j).ds;
    }
    sum = sum_warp(sum);
    if (lane() != 0) return;
    std::int64_t at = 0;
    for (int d = 0; d < 4; ++d) at += own.at[d] * to.strides[d];
    store(to.data, to.element, at, sum);
  });
}

FOVEA_CUDA_ENTRY(dq, ReferenceBackwardArgs, kReferenceThreads, 1, backward_queries)
FOVEA_CUDA_ENTRY(dk_dv, ReferenceBackwardArgs, kReferenceThreads, 1, backward_keys)
FOVEA_CUDA_ENTRY(dsinks, ReferenceBackwardArgs, kReferenceThreads, 1, sum_dsinks)
FOVEA_CUDA_ENTRY(dmask, ReferenceBackwardArgs, kReferenceThreads, 1, backward_mask)

}  // namespace

const Entry* reference_dq_entry() { return &dq; }
const Entry* reference_dk_dv_entry() { return &dk_dv; }
const Entry* reference_dsinks_entry() { return &dsinks; }
const Entry* reference_dmask_entry() { return &dmask; }

}  // namespace fovea::cuda::FOVEA_WORLD
