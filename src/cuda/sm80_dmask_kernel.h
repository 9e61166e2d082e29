// The gradient of an additive mask, a part of cuda.sm80.backward.
//
//   dmask = P o (drop o dO V^T - delta), summed over what the mask is broadcast over
//
// A block takes a tile of the mask [kRows, kKeys], or of less where rows or keys are broadcast, and
// walks all pairs of tiles that share it: sequences, heads, and rows or keys. Sums are f64, in one
// order, so that the result is the same in every run.
#pragma once

#include "cuda/sm80_backward_tiles.h"

namespace fovea::cuda::FOVEA_WORLD {

template <class S>
class MaskGradientTask : BackwardTiles<S> {
  using Base = BackwardTiles<S>;
  using Base::args_, Base::t, Base::key_of;
  static_assert(S::kAcross == 1 && S::kM == 1);

 public:
  static constexpr int kBytes = S::kStateAt + static_cast<int>(sizeof(BackwardState));

  FOVEA_DEVICE explicit MaskGradientTask(const MaskGradientArgs& args)
      : Base(args), dmask_(args.dmask), key_tiles_(args.mask_key_tiles) {}

  FOVEA_DEVICE void run(std::int64_t task) {
    const plain::Span keys = own(task % tiles(3, key_tiles_), 3, key_tiles_);
    task /= tiles(3, key_tiles_);
    const plain::Span rows = own(task % tiles(2, args_.row_tiles), 2, args_.row_tiles);
    task /= tiles(2, args_.row_tiles);
    const plain::Span heads = own(task % tiles(1, args_.shape.q_heads), 1, args_.shape.q_heads);
    const plain::Span batches = own(task / tiles(1, args_.shape.q_heads), 0, args_.shape.batch);
    FOVEA_UNROLL
    for (int n = 0; n < S::kN; ++n) {
      FOVEA_UNROLL
      for (int x = 0; x < 4; ++x) sums_[n][x] = 0;
    }
    const std::int64_t group = args_.shape.q_heads / args_.shape.kv_heads;
    for (std::int64_t b = batches.begin; b < batches.end; ++b)
      for (std::int64_t h = heads.begin; h < heads.end; ++h)
        for (std::int64_t j = keys.begin; j < keys.end; ++j) {
          if (warp() == 0) {
            this->enter_keys(b, h / group, j * S::kKeys);
            if (lane() == 0) this->enter_head(h);
          }
          barrier();
          if (!t().queries.empty()) {
            this->load_keys_and_values();
            this->for_tiles(
                plain::greater(rows.begin * S::kRows, t().queries.begin),
                [&] { return plain::lesser(rows.end * S::kRows, t().queries.end); },
                [](int tile) { return tile; }, [&](std::int64_t i, auto) { add_tile(i); });
          }
          barrier();  // the next keys' state and copies
        }
    store(batches.begin, heads.begin, rows.begin * S::kRows, keys.begin * S::kKeys);
  }

 private:
  FOVEA_DEVICE bool reduced(int d) const { return dmask_.sizes[d] == 1; }
  FOVEA_DEVICE std::int64_t tiles(int d, std::int64_t all) const { return reduced(d) ? 1 : all; }
  /// What a task walks along one dimension: one of all, or all.
  FOVEA_DEVICE plain::Span own(std::int64_t n, int d, std::int64_t all) const {
    return reduced(d) ? plain::Span{0, all} : plain::Span{n, n + 1};
  }

  FOVEA_DEVICE void add_tile(std::int64_t i) {
    const bool partial = this->is_partial(i);
    float p[1][S::kN][4] = {}, ds[1][S::kN][4] = {};
    typename Base::Marks marks;
    this->compute(p, ds, i, partial, marks, [](int, int, int, float, float) {});
    FOVEA_UNROLL
    for (int n = 0; n < S::kN; ++n) {
      FOVEA_UNROLL
      for (int x = 0; x < 4; ++x) sums_[n][x] += static_cast<double>(ds[0][n][x]);
    }
  }

  FOVEA_DEVICE void store(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t key) {
    const Shared<double> parts = shared_array<double>(0, S::kWarps * S::kRows);
    if (reduced(2)) add_up_rows();
    if (reduced(3)) {
      barrier();
      add_up_keys(parts);
    }
    const int first = lane() % 4 * 2;
    FOVEA_UNROLL
    for (int n = 0; n < S::kN; ++n) {
      FOVEA_UNROLL
      for (int x = 0; x < 4; ++x) {
        const std::int64_t i = reduced(2) ? 0 : row + 8 * n + first + x % 2;
        const std::int64_t j = reduced(3) ? 0 : key + key_of(x / 2);
        const bool mine = (!reduced(2) || (n == 0 && x % 2 == 0 && first == 0)) &&
                          (!reduced(3) || (x / 2 == 0 && lane() / 4 == 0 && warp() == 0));
        if (!mine || i >= dmask_.sizes[2] || j >= dmask_.sizes[3]) continue;
        store_element(dmask_.data, dmask_.element,
                      b * dmask_.strides[0] + h * dmask_.strides[1] + i * dmask_.strides[2] +
                          j * dmask_.strides[3],
                      static_cast<float>(sums_[n][x]));
      }
    }
    barrier();  // the next task's copies
  }
  /// Over the queries of the tile: n, x % 2 and the four lanes of a key. In sums_[0][0], [0][2].
  FOVEA_DEVICE void add_up_rows() {
    FOVEA_UNROLL
    for (int r = 0; r < 2; ++r) {
      double sum = 0;
      FOVEA_UNROLL
      for (int n = 0; n < S::kN; ++n) sum += sums_[n][2 * r] + sums_[n][2 * r + 1];
      sum += shuffle_xor(sum, 1);
      sums_[0][2 * r] = sum + shuffle_xor(sum, 2);
    }
  }
  /// Over the keys of the tile: x / 2, the eight lanes of a query, and warps. In sums_[n][0],
  /// [n][1].
  FOVEA_DEVICE void add_up_keys(const Shared<double>& parts) {
    FOVEA_UNROLL
    for (int n = 0; n < S::kN; ++n) {
      FOVEA_UNROLL
      for (int x = 0; x < 2; ++x) {
        double sum = sums_[n][x] + sums_[n][x + 2];
        sum += shuffle_xor(sum, 4);
        sum += shuffle_xor(sum, 8);
        sum += shuffle_xor(sum, 16);
        if (lane() / 4 == 0) parts[warp() * S::kRows + 8 * n + lane() * 2 + x] = sum;
      }
    }
    barrier();
    FOVEA_UNROLL
    for (int n = 0; n < S::kN; ++n) {
      FOVEA_UNROLL
      for (int x = 0; x < 2; ++x) {
        double sum = 0;
        for (int w = 0; w < S::kWarps; ++w) sum += parts[w * S::kRows + 8 * n + lane() % 4 * 2 + x];
        sums_[n][x] = sum;
      }
    }
  }

  const plain::MaskSink& dmask_;
  const std::int64_t key_tiles_;
  double sums_[S::kN][4];
};

template <class S>
FOVEA_DEVICE void mask_gradient(const MaskGradientArgs& args) {
  MaskGradientTask<S> task(args);
  for (std::int64_t n = block_index(); n < args.mask_tasks; n += grid_blocks()) task.run(n);
}

}  // namespace fovea::cuda::FOVEA_WORLD
