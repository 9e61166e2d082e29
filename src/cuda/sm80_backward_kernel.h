// cuda.sm80.backward: gradients of attention on tensor cores without a matrix of scores, for any
// GPU from sm_80 on.
//
//   P = exp(S - lse) where visible, else 0 (sm80_scores.h)     delta = rowsum(dO o O) - dlse
//   dS = P o (drop o dO V^T - delta) o softcap'
//   dV = (P o drop)^T dO,  dK^ = scale dS^T Q^,  dQ^ = scale dS K^
//
//   q [batch, q_heads, q_len, head_dim], k, dk [batch, kv_heads, kv_len, head_dim],
//   v, dv [batch, kv_heads, kv_len, v_head_dim], dout [batch, q_heads, q_len, v_head_dim],
//   lse, delta [batch, q_heads, q_len], sums of dq f32 [batch, q_heads, q_len, head_dim]; or packed
//
// A block takes a tile of kKeys keys of one KV head, keeps K and V in shared memory and dK and dV
// in registers, and walks the queries of all heads of the group in tiles of kRows. Scores are made
// transposed, keys down (sm80_backward_tiles.h). P^T and dS^T go through shared memory, so that
// warps may divide each product as suits it: a warp owns 16 kM keys by 8 kN queries of the scores,
// 16 kM keys by 8 kC columns of dK and dV, and 16 kQ queries by 8 kQC columns of dQ's tile. That
// tile is added to the sums in global memory, in any order (atomics) or, deterministic, in the
// order of the key tiles: a counter says whose turn it is, and a block only ever waits for blocks
// with smaller numbers.
//
// Gradients wider than 128 columns: several blocks compute the same P and dS for 128 columns each.
//
// Before: prepare.h (delta). After: finish.h (dq^ to dq; dk, dv where they need more than a store).
//
// Shared memory: K [kKeys, kDepth], V likewise, Q [kRows, kDepth], dO likewise (both twice where
// there is room), P^T [kKeys, kRows], dS^T likewise, lse and delta of kRows rows. kInParts, f32 of
// several warps: all of them in parts, 6 bytes an element, which are made once for all warps and
// the products they take part in; the next Q and dO arrive in f32 [kRows, kDepth]. Registers of
// accumulators: kM (2 * 4 kC + 2 * 4 kN) a thread.
//
// Serves: f16, bf16, f32 (six products of bf16 each) and tf32; head_dim and v_head_dim 1
// to 512; everything of the contract but paged caches and quantised modes.
#pragma once

#include "cuda/device/atomic.h"
#include "cuda/sm80_backward_tiles.h"

namespace fovea::cuda::FOVEA_WORLD {

template <class S>
class BackwardTask : BackwardTiles<S> {
  using Base = BackwardTiles<S>;
  using Base::args_, Base::keys_, Base::queries, Base::douts;
  using Base::state_;
  using Base::t, Base::first_key, Base::key_of, Base::mask_class;
  using typename Base::Element;
  using typename Base::Marks;
  using typename Base::Mode;
  static constexpr int kM = S::kM, kN = S::kN, kC = S::kC, kQ = S::kQ, kQC = S::kQC;

 public:
  FOVEA_DEVICE explicit BackwardTask(const BackwardArgs& args)
      : Base(args), weights_(S::kWeightsAt), gradients_(S::kGradientsAt) {}

  static constexpr int kBytes = S::kStateAt + static_cast<int>(sizeof(BackwardState));

  FOVEA_DEVICE void run(std::int64_t task) {
    if (warp() == 0) place(task);
    barrier();
    if (t().live) walk();
    barrier();  // the next task's state and copies
  }

 private:
  FOVEA_DEVICE void walk() {
    if (thread_index() == 0) this->enter_head(t().head);
    this->load_keys_and_values();
    clear(dk_);
    clear(dv_);
    while (true) {
      barrier();  // the head's state is there
      this->for_tiles(
          t().queries.begin, [&] { return t().queries.end; },
          [&](int tile) { return next_tile(tile); },
          [&](std::int64_t i, auto plain) { query_tile<plain>(i); });
      if (t().head == t().last_head) break;
      barrier();  // nobody reads it any more
      if (thread_index() == 0) this->enter_head(t().head + 1);
    }
    finish();
  }

  // Which keys and columns a task is of; all lanes of one warp find out.
  FOVEA_DEVICE void place(std::int64_t task) const {
    const auto& shape = args_.shape;
    const std::int64_t column_tile = task % args_.column_tiles;
    task /= args_.column_tiles;
    // All heads' first tiles come first: deterministic sums wait for smaller numbers alone.
    const std::int64_t pairs = shape.batch * shape.kv_heads;
    this->enter_keys(task % pairs / shape.kv_heads, task % shape.kv_heads, task / pairs * S::kKeys);
    if (lane() != 0) return;

    BackwardState& to = state_[0];
    to.column_tile = column_tile;
    to.first_column = static_cast<int>(column_tile) * S::kColumns;
    to.columns = columns_of(shape.head_dim, to.first_column);
    to.value_columns = columns_of(shape.v_head_dim, to.first_column);
    to.key_tile = task / pairs;
    const std::int64_t group = shape.q_heads / shape.kv_heads;
    to.head = task % pairs % shape.kv_heads * group;
    to.last_head = to.head + group - 1;
  }
  FOVEA_DEVICE static int columns_of(std::int64_t width, int first) {
    return static_cast<int>(plain::lesser(S::kColumns, width - first));
  }
  FOVEA_DEVICE int first_column() const { return S::kColumns == S::kDepth ? 0 : t().first_column; }
  /// Deterministic sums count every tile of keys, so that none is left out.
  FOVEA_DEVICE int next_tile(int tile) const {
    if constexpr (S::kMasked)
      if (args_.turns == nullptr)
        while (this->row_of_tile(tile) < t().queries.end &&
               mask_class(this->row_of_tile(tile)) == kTileHidden)
          ++tile;
    return tile;
  }

  template <bool kPlain>
  FOVEA_DEVICE void query_tile(std::int64_t i) {
    const bool partial = !kPlain && this->is_partial(i);
    {
      float p[kM][kN][4] = {}, ds[kM][kN][4] = {};
      Marks marks;
      this->compute(p, ds, i, partial, marks, [&](int m, int n, int r, float x0, float x1) {
        store_scores(weights_, m, n, r, x0, x1);
      });
      FOVEA_UNROLL
      for (int m = 0; m < kM; ++m) {
        FOVEA_UNROLL
        for (int n = 0; n < kN; ++n) {
          FOVEA_UNROLL
          for (int r = 0; r < 2; ++r) {
            if constexpr (!S::kMasked)
              store_scores(weights_, m, n, r, p[m][n][2 * r], p[m][n][2 * r + 1]);
            store_scores(gradients_, m, n, r, ds[m][n][2 * r], ds[m][n][2 * r + 1]);
          }
        }
      }
      if (meet(partial)) {
        if constexpr (!S::kMasked) this->hide(i, marks);
        add_visible(marks, i);
        return;
      }
    }
    if (args_.dq.data != nullptr) {
      float dq[kQ][kQC][4] = {};
      columns_by_columns<Mode, S::kKeys>(dq, gradients_, dq_row(), keys_,
                                         first_column() + dq_column());
      add_dq<kPlain>(dq, i);
    }
    if (wants_dv())
      rows_by_columns<Mode, S::kRows>(dv_, weights_, first_key(), douts(), own_column());
    if (wants_dk())
      rows_by_columns<Mode, S::kRows>(dk_, gradients_, first_key(), queries(), own_column());
  }
  /// A barrier, behind which P and dS are there; in a partial tile it is also said whether some
  /// operand is not finite.
  FOVEA_DEVICE bool meet(bool partial) const {
    if (!partial) {
      barrier();
      return false;
    }
    return barrier_any(has_non_finite<S::kKeys, S::kDepth, S::kThreads>(keys_) ||
                       has_non_finite<S::kRows, S::kDepth, S::kThreads>(queries()) ||
                       has_non_finite<S::kRows, S::kDepth, S::kThreads>(douts()));
  }

  FOVEA_DEVICE bool wants_dk() const {
    return args_.dk.segments.count > 0 || args_.dk_sums.data != nullptr;
  }
  FOVEA_DEVICE bool wants_dv() const { return args_.dv.segments.count > 0; }
  /// The warp's first column of dK and dV: of the block's, and in a tile.
  FOVEA_DEVICE static int first_of_columns() { return warp() % S::kAcross * 8 * kC; }
  FOVEA_DEVICE int own_column() const { return first_column() + first_of_columns(); }

  // Two queries of a key, to P^T or dS^T.
  FOVEA_DEVICE void store_scores(const typename S::Scores& to, int m, int n, int r, float x0,
                                 float x1) const {
    const int at = S::Scores::at(key_of(2 * m + r), this->row_of_lane() + 8 * n);
    if constexpr (S::kInParts) {
      const Parts parts = parts_of(x0, x1);
      FOVEA_UNROLL
      for (int p = 0; p < 3; ++p)
        to.data.template as<std::uint32_t>()[(at + p * S::Scores::kPart) / 2] = parts.word[p];
    } else if constexpr (kIsWide<Mode>) {
      to.data[at] = x0;
      to.data[at + 1] = x1;
    } else {
      to.data.template as<std::uint32_t>()[at / 2] = pack<Element>(x0, x1);
    }
  }

  /// The warp's rows and columns of dQ's tile.
  FOVEA_DEVICE static int dq_row() { return warp() % S::Warps::kRowGroups * 16 * kQ; }
  FOVEA_DEVICE static int dq_column() { return warp() / S::Warps::kRowGroups * 8 * kQC; }

  // dQ += the tile.
  template <bool kPlain>
  FOVEA_DEVICE void add_dq(const float (&dq)[kQ][kQC][4], std::int64_t i) const {
    if (args_.turns == nullptr) {
      for_dq<kPlain>(dq, i, [](float* to, float x0, float x1) { add_pair_to(to, x0, x1); });
      return;
    }
    wait_for_turn(i);
    for_dq<kPlain>(dq, i, [](float* to, float x0, float x1) {
      to[0] += x0;
      to[1] += x1;
    });
    pass_turn(i);
  }
  /// Rows of sums are padded to whole groups of 8 columns.
  template <bool kPlain, class Add>
  FOVEA_DEVICE void for_dq(const float (&dq)[kQ][kQC][4], std::int64_t i, Add&& add) const {
    const int row = dq_row() + lane() / 4, column = dq_column() + lane() % 4 * 2;
    const std::int64_t rows = t().sequence.q_len - i, step = 8 * args_.dq.row;
    float* const first = t().dq + (i + row) * args_.dq.row + first_column() + column;
    const auto each = [&](auto&& there) {
      float* to = first;
      FOVEA_UNROLL
      for (int r = 0; r < 2 * kQ; ++r) {
        FOVEA_UNROLL
        for (int n = 0; n < kQC; ++n)
          if (there(8 * r, 8 * n))
            add(to + 8 * n, dq[r / 2][n][r % 2 * 2], dq[r / 2][n][r % 2 * 2 + 1]);
        to += step;
      }
    };
    if (kPlain || (rows >= S::kRows && t().columns == S::kColumns)) {
      each([](int, int) { return true; });
    } else {
      const std::int64_t rows_left = rows - row;
      const int columns_left = t().columns - dq_column();
      each([&](int r, int n) { return r < rows_left && n < columns_left; });
    }
  }
  FOVEA_DEVICE std::uint32_t* turn_of(std::int64_t i) const {
    const auto& shape = args_.shape;
    return args_.turns +
           ((t().batch * shape.q_heads + t().head) * args_.row_tiles + i / S::kRows) *
               args_.column_tiles +
           t().column_tile;
  }
  /// How many tiles of keys add to the tile of queries before this one does.
  FOVEA_DEVICE std::uint32_t turn(std::int64_t i) const {
    const plain::Span keys =
        plain::meet(t().band.keys_of_some({i, plain::lesser(i + S::kRows, t().sequence.q_len)}),
                    {0, t().sequence.kv_len});
    return static_cast<std::uint32_t>(t().key_tile - keys.begin / S::kKeys);
  }
  FOVEA_DEVICE void wait_for_turn(std::int64_t i) const {
    if (thread_index() == 0)
      while (load_acquire(turn_of(i)) != turn(i)) {
      }
    barrier();
  }
  FOVEA_DEVICE void pass_turn(std::int64_t i) const {
    fence();
    barrier();
    if (thread_index() == 0) store_release(turn_of(i), turn(i) + 1);
  }

  // Where some pairs are hidden and some operand is not finite, 0 times that must not count: the
  // three products by element, over visible pairs.
  FOVEA_DEVICE void add_visible(const Marks& marks, std::int64_t i) {
    mark_hidden(weights_, marks);
    mark_hidden(gradients_, marks);
    barrier();
    if (wants_dv()) add_marked(dv_, weights_, douts(), t().value_columns);
    if (wants_dk()) add_marked(dk_, gradients_, queries(), t().columns);
    if (args_.dq.data == nullptr) return;
    float dq[kQ][kQC][4] = {};
    const int row0 = fresh(dq_row() + lane() / 4);
    const int first = fresh(first_column() + dq_column() + lane() % 4 * 2);
    FOVEA_ROLL
    for (int key = 0; key < S::kKeys; ++key) {
      FOVEA_UNROLL
      for (int m = 0; m < kQ; ++m) {
        FOVEA_UNROLL
        for (int n = 0; n < kQC; ++n) {
          FOVEA_UNROLL
          for (int x = 0; x < 4; ++x) {
            const int row = row0 + 16 * m + x / 2 * 8, column = first + 8 * n + x % 2;
            if (!is_mark(gradients_.data[S::Scores::at(key, row)]))
              dq[m][n][x] += value_at(gradients_, key, row) * value_at(keys_, key, column);
          }
        }
      }
    }
    add_dq<false>(dq, i);
  }
  using Score = typename S::Scores::Element;  ///< a whole one, or its largest part
  /// The lane's hidden elements become -0, and no others are.
  FOVEA_DEVICE void mark_hidden(const typename S::Scores& tile, const Marks& marks) const {
    const int first = fresh(S::Scores::at(key_of(0), this->row_of_lane()));
    FOVEA_UNROLL
    for (int m = 0; m < kM; ++m) {
      FOVEA_UNROLL
      for (int n = 0; n < kN; ++n) {
        FOVEA_UNROLL
        for (int x = 0; x < 4; ++x) {
          Score& element = tile.data[first + S::Scores::at(16 * m + x / 2 * 8, 8 * n + x % 2)];
          if (is_mark(element)) element = from_f32<Score>(0.0f);
          if (Marks::has(marks.hidden, m, n, x)) element = from_f32<Score>(-0.0f);
        }
      }
    }
  }
  FOVEA_DEVICE static bool is_mark(Score x) {
    const float value = to_f32(x);
    return value == 0 && float_to_bits(value) != 0;
  }
  /// sums += product of marked rows with the rows of `tile`.
  FOVEA_DEVICE void add_marked(float (&sums)[kM][kC][4], const typename S::Scores& marked,
                               const typename S::Rows& tile, int columns) const {
    const int key0 = fresh(key_of(0)), first = fresh(first_of_columns() + lane() % 4 * 2);
    FOVEA_ROLL
    for (int row = 0; row < S::kRows; ++row) {
      FOVEA_UNROLL
      for (int m = 0; m < kM; ++m) {
        FOVEA_UNROLL
        for (int n = 0; n < kC; ++n) {
          FOVEA_UNROLL
          for (int x = 0; x < 4; ++x) {
            const int column = first + 8 * n + x % 2;
            if (column >= columns) continue;
            const int key = key0 + 16 * m + x / 2 * 8;
            if (!is_mark(marked.data[S::Scores::at(key, row)]))
              sums[m][n][x] +=
                  value_at(marked, key, row) * value_at(tile, row, first_column() + column);
          }
        }
      }
    }
  }
  FOVEA_DEVICE static void clear(float (&sums)[kM][kC][4]) {
    FOVEA_UNROLL
    for (int m = 0; m < kM; ++m) {
      FOVEA_UNROLL
      for (int n = 0; n < kC; ++n) {
        FOVEA_UNROLL
        for (int x = 0; x < 4; ++x) sums[m][n][x] = 0;
      }
    }
  }

  // dK, dV.
  FOVEA_DEVICE void finish() {
    store_sums(dk_, args_.dk, args_.dk_sums, args_.score_scale, t().columns);
    store_sums(dv_, args_.dv, {}, args_.scores.dropout.keep_scale, t().value_columns);
  }
  FOVEA_DEVICE void store_sums(const float (&sums)[kM][kC][4], const plain::Sink& sink,
                               const Sums& to, float factor, int columns) {
    const plain::Place at{t().batch, t().kv_head, t().sequence.k_begin};
    const int key0 = fresh(key_of(0)), first = fresh(first_of_columns() + lane() % 4 * 2);
    FOVEA_UNROLL
    for (int r = 0; r < 2 * kM; ++r) {
      const std::int64_t key = t().key + key0 + 8 * r;
      if (key >= t().sequence.kv_capacity) continue;
      plain::Run<char*> run{};
      if (to.data != nullptr) {
        float* row = to.data + t().batch * to.batch + t().kv_head * to.head +
                     (t().sequence.k_begin + key) * to.row;
        run = {reinterpret_cast<char*>(row), plain::Element::f32, 0, 1, 1, 0};
      } else if (sink.segments.count > 0) {
        run = plain::run_at(sink.segments, at, key, 1);
      }
      if (run.data == nullptr) continue;
      store_row_pairs<Mode, kC>(run, first_column() + first, columns - first, [&](int n, int x) {
        return sums[r / 2][n][r % 2 * 2 + x] * factor;
      });
    }
  }

  const typename S::Scores weights_, gradients_;  ///< P^T o drop, dS^T
  float dk_[kM][kC][4], dv_[kM][kC][4];
};

}  // namespace fovea::cuda::FOVEA_WORLD
