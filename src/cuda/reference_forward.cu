// cuda.reference.forward, the kernel: forward in f64 as the formulas are written.
//
//   lse_i = log(sum_visible exp s(i,j) + [exp sink]),  out_i = sum_j p(i,j) drop(i,j) v^_j
//
//   q^ [batch, q_heads, q_len, head_dim], k^ [batch, kv_heads, kv_len, head_dim],
//   v^ [batch, kv_heads, kv_len, v_head_dim] in f64, or packed -> out, lse
//
// A warp owns a query row and walks over its keys twice: for the largest score, and for the sums of
// weights and of weighted values. A lane owns one of 32 keys for its score, and every 32nd column
// for the sums, which take the keys in their order.
//
// Budget: no shared memory. For any head_dim and v_head_dim up to 512. Chosen for clarity, not for
// speed: lanes read rows of k^ of their own. It has not run on a GPU yet.
#include "cuda/reference_scores.h"

namespace fovea::cuda::FOVEA_WORLD {
namespace {

FOVEA_DEVICE void forward(const ReferenceForwardArgs& args) {
  const std::int64_t width = args.shape.v_head_dim;
  for_each_query(args, [&](const QueryHead& head, std::int64_t i) {
    reference::Softmax<double> softmax;
    softmax.largest = largest_score(args, head, i);

    // sum weights and weighted values
    const plain::Span keys = head.keys_of(i);
    WarpRow out;
    double sum = 0;
    for (std::int64_t first = keys.begin; first < keys.end; first += 32) {
      const std::int64_t j = first + lane();
      double weight = 0, factor = 0;
      Pair pair;
      if (j < keys.end) pair = pair_at(args, head, i, j);
      if (pair.visible) {
        weight = softmax.weight(pair.score.value);
        factor = weight * head.drop.at(i, j);
      }
      sum += weight;
      const std::uint32_t seen = ballot(pair.visible);
      for (int n = 0; n < 32; ++n)
        if ((seen >> n & 1) != 0) out.add(shuffle(factor, n), head.v + (first + n) * width, width);
    }
    softmax.sum = sum_warp(sum) + softmax.weight(head.sink);

    // store out and lse
    const plain::Sequence& s = head.sequence;
    const plain::Run<char*> to =
        plain::run_at(args.out.segments, {s.batch, head.head, s.q_begin}, i, 1);
    out.each(width, [&](std::int64_t column, double x) {
      store(to.data, to.element, column * to.column, softmax.share(x));
    });
    if (args.lse.at.data != nullptr && lane() == 0)
      store(args.lse.at.data, args.lse.element, args.lse.place(s, head.head, i), softmax.lse());
  });
}

FOVEA_CUDA_ENTRY(entry, ReferenceForwardArgs, kReferenceThreads, 1, forward)

}  // namespace

const Entry* reference_forward_entry() { return &entry; }

}  // namespace fovea::cuda::FOVEA_WORLD
