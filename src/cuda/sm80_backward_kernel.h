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
// transposed, keys down: a warp owns 16 keys, and its parts of P^T and dS^T serve as left operands
// of dV and dK where they are. dS^T also goes through shared memory, since dQ sums over keys: its
// tile is computed by all warps together and added to the sums in global memory, in any order
// (atomics) or, deterministic, in the order of the key tiles: a counter says whose turn it is, and
// a block only ever waits for blocks with smaller numbers.
//
// Gradients wider than 128 columns: several blocks compute the same P and dS for 128 columns each.
//
// Before: prepare.h (delta). After: finish.h (dq^ to dq; dk, dv where they need more than a store).
//
// Shared memory: K [kKeys, kDepth], V likewise, Q [kRows, kDepth], dO likewise, dS^T [kKeys,
// kRows], lse and delta of kRows rows. Registers of accumulators: 2 kColumns / 2 + 2 kRows / 2 a
// thread.
//
// Serves: f16, bf16, f32 (three or four products of tf32 each) and tf32; head_dim and v_head_dim 1
// to 512; everything of the contract but paged caches and quantised modes.
#pragma once

#include "cuda/device/atomic.h"
#include "cuda/sm80_backward.h"
#include "cuda/sm80_scores.h"
#include "cuda/sm80_tiles.h"

namespace fovea::cuda::FOVEA_WORLD {

/// kStages: tiles of queries in shared memory; with two, one is on its way while the other is in
/// use. kMasked: masks, softcap, ALiBi and dropout are compiled in. kForMask: dS is the mask's
/// gradient.
template <class Mode_, int kDepth_, int kKeys_, int kRows_, int kWarps_, int kStages_,
          bool kMasked_, bool kForMask_ = false>
struct BackwardShape {
  using Mode = Mode_;
  using Element = typename Mode::Element;
  static constexpr int kDepth = kDepth_, kKeys = kKeys_, kRows = kRows_, kWarps = kWarps_;
  static constexpr int kStages = kStages_;
  static constexpr bool kMasked = kMasked_, kForMask = kForMask_;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kColumns = kDepth < kMaxGradientColumns ? kDepth : kMaxGradientColumns;
  static constexpr int kN = kRows / 8, kC = kColumns / 8;
  // dQ: 16 rows a warp, and as many columns as then remain.
  static constexpr int kRowGroups = kRows / 16, kColumnParts = kWarps / kRowGroups;
  static constexpr int kQ = kC / kColumnParts;
  static_assert(kKeys == 16 * kWarps && kWarps % kRowGroups == 0);

  using Keys = Tile<Element, kKeys, kDepth>;
  using Rows = Tile<Element, kRows, kDepth>;
  using Scores = Tile<Element, kKeys, kRows>;
  static constexpr int kValuesAt = Keys::kBytes, kQueriesAt = kValuesAt + Keys::kBytes;
  // A stage: Q, dO, lse, delta, dlse.
  static constexpr int kDoutsAt = Rows::kBytes, kSavedAt = 2 * Rows::kBytes;
  static constexpr int kStageBytes = kSavedAt + 3 * kRows * static_cast<int>(sizeof(float));
  static constexpr int kScoresAt = kQueriesAt + kStages * kStageBytes;
  static constexpr int kStateAt = kScoresAt + Scores::kBytes;
};

/// Which tile of keys, of which head: the same for all threads; in shared memory, since registers
/// are short.
struct BackwardState {
  std::int64_t batch, kv_head, head;
  std::int64_t key;  ///< the first of the tile
  std::int64_t key_tile, column_tile;
  plain::Sequence sequence;
  plain::Band band;
  plain::Span keys, queries;  ///< keys that there are; queries that see some of them
  HeadRows k, v, q, dout;
  const float* lse;    ///< of the head's first row
  const float* delta;  ///< likewise
  const float* dlse;   ///< likewise, or null
  float* dq;           ///< likewise
  bool live;
};

/// A tile of keys and one of queries: what is loaded, and the scores' gradients that come of them.
template <class S>
class BackwardTiles {
 protected:
  using Mode = typename S::Mode;
  using Element = typename S::Element;

  FOVEA_DEVICE explicit BackwardTiles(const BackwardArgs& args)
      : args_(args),
        keys_(0),
        values_(S::kValuesAt),
        gradients_(S::kScoresAt),
        state_(shared_array<BackwardState>(S::kStateAt, 1)) {}

  FOVEA_DEVICE const BackwardState& t() const { return state_[0]; }
  FOVEA_DEVICE static int stage_at(int stage) { return S::kQueriesAt + stage * S::kStageBytes; }
  FOVEA_DEVICE typename S::Rows queries() const { return typename S::Rows(stage_at(stage_)); }
  FOVEA_DEVICE typename S::Rows douts() const {
    return typename S::Rows(stage_at(stage_) + S::kDoutsAt);
  }
  /// lse, then delta, then dlse
  FOVEA_DEVICE static Shared<float> saved(int stage) {
    return shared_array<float>(stage_at(stage) + S::kSavedAt, 3 * S::kRows);
  }

  // What one thread finds out for all.
  FOVEA_DEVICE void enter_keys(std::int64_t batch, std::int64_t kv_head, std::int64_t key) const {
    BackwardState& to = state_[0];
    to.batch = batch;
    to.sequence = plain::sequence_of(args_, batch);
    to.band = plain::band_of(args_.band, to.sequence);
    to.kv_head = kv_head;
    to.key = key;
    to.keys = {key, plain::lesser(key + S::kKeys, to.sequence.kv_len)};
    to.queries = {0, 0};
    if (!to.keys.empty())
      to.queries = plain::meet(to.band.rows_of_some(to.keys), {0, to.sequence.q_len});
    if (to.queries.empty()) to.queries = {0, 0};
    const plain::Place at{batch, kv_head, to.sequence.k_begin};
    to.k = head_rows<Mode>(args_.k, at);
    to.v = head_rows<Mode>(args_.v, at);
    to.live = key < to.sequence.kv_capacity;
  }
  FOVEA_DEVICE void enter_head(std::int64_t head) const {
    BackwardState& to = state_[0];
    to.head = head;
    const plain::Place at{to.batch, head, to.sequence.q_begin};
    to.q = head_rows<Mode>(args_.q, at);
    to.dout = head_rows<Mode>(args_.dout, at);
    const auto first_row = [&](const auto& x) {
      return x.data + at.batch * x.batch + at.head * x.head + at.first_row * x.row;
    };
    to.lse = first_row(args_.lse);
    to.delta = first_row(args_.delta);
    to.dlse = args_.dlse.data == nullptr ? nullptr : first_row(args_.dlse);
    to.dq = args_.dq.data == nullptr ? nullptr : first_row(args_.dq);
  }
  /// Of the lane's keys, r = 0, 1, in the tile.
  FOVEA_DEVICE int key_of(int r) const { return warp() * 16 + r * 8 + lane() / 4; }

  FOVEA_DEVICE void load_keys_and_values() {
    copy_rows<Mode, S::kKeys, S::kDepth, S::kThreads>(keys_, t().k, t().key, t().sequence.kv_len,
                                                      args_.shape.head_dim);
    copy_rows<Mode, S::kKeys, S::kDepth, S::kThreads>(values_, t().v, t().key, t().sequence.kv_len,
                                                      args_.shape.v_head_dim);
    copy_commit();
    copy_wait<0>();
    barrier();
    keys_are_finite_ = !barrier_any(has_non_finite(keys_, S::kKeys, args_.shape.head_dim));
  }

  FOVEA_DEVICE int mask_class(std::int64_t i) const {
    if constexpr (!S::kMasked) return kTileVisible;
    if (args_.scores.mask.data == nullptr) return kTileVisible;
    return class_of(args_.mask_tiles, t().batch, t().head,
                    {i, plain::lesser(i + S::kRows, t().queries.end)}, t().keys);
  }

  /// Whether the band or a mask hides some pair of the tiles.
  FOVEA_DEVICE bool is_partial(std::int64_t i) const {
    const bool inside =
        plain::covers(t().band.keys_of_every({i, i + S::kRows}), {t().key, t().key + S::kKeys}) &&
        t().key + S::kKeys <= t().sequence.kv_len && i + S::kRows <= t().sequence.q_len;
    return !inside || mask_class(i) != kTileVisible;
  }

  /// P^T o drop and dS^T, of Q and dO as loaded. hidden: by key, a bit a lane's query.
  FOVEA_DEVICE void compute(float (&p)[1][S::kN][4], float (&ds)[1][S::kN][4], std::int64_t i,
                            bool partial, std::uint32_t (&hidden)[2]) {
    rows_by_rows<Mode, S::kDepth, Product::transposed_scores>(p, keys_, warp() * 16, queries());
    rows_by_rows<Mode, S::kDepth>(ds, values_, warp() * 16, douts());
    weigh(p[0], ds[0], i, partial, hidden);
  }

  // Load Q, dO, lse, delta.
  FOVEA_DEVICE void load_queries(std::int64_t i, int stage) {
    const std::int64_t end = t().sequence.q_len;
    copy_rows<Mode, S::kRows, S::kDepth, S::kThreads>(typename S::Rows(stage_at(stage)), t().q, i,
                                                      end, args_.shape.head_dim);
    copy_rows<Mode, S::kRows, S::kDepth, S::kThreads>(
        typename S::Rows(stage_at(stage) + S::kDoutsAt), t().dout, i, end, args_.shape.v_head_dim);
    copy_commit();
    // What the rows have saved comes by way of registers: store_saved().
    static_assert(S::kRows <= S::kThreads);
    const std::int64_t row = i + thread_index();
    if (thread_index() >= S::kRows || row >= end) {
      fetched_[0] = fetched_[1] = fetched_[2] = 0;
      return;
    }
    const float lse = t().lse[row * args_.lse.row];
    fetched_[0] = lse == kNegativeInfinity ? kInfinity : lse;  // every p is 0
    fetched_[1] = t().delta[row * args_.delta.row];
    fetched_[2] = t().dlse != nullptr ? t().dlse[row * args_.dlse.row] : 0;
  }
  FOVEA_DEVICE void store_saved(int stage) const {
    if (thread_index() >= S::kRows) return;
    const Shared<float> to = saved(stage);
    FOVEA_UNROLL
    for (int n = 0; n < 3; ++n) to[n * S::kRows + thread_index()] = fetched_[n];
  }
  /// Calls use(i) for tiles of queries in turn, loaded. next(i): the first of them from i on.
  template <class Next, class Use>
  FOVEA_DEVICE void for_tiles(std::int64_t begin, std::int64_t end, Next&& next, Use&& use) {
    std::int64_t i = next(begin);
    stage_ = 0;
    if (S::kStages > 1 && i < end) {
      load_queries(i, 0);
      store_saved(0);
    }
    while (i < end) {
      const std::int64_t then = next(i + S::kRows);
      if constexpr (S::kStages == 1) {
        barrier();  // the last tile's products are done
        load_queries(i, 0);
        store_saved(0);
      }
      copy_wait<0>();
      barrier();  // the tile is there, and nobody reads the last one any more
      if (S::kStages > 1 && then < end) load_queries(then, 1 - stage_);
      use(i);
      if (S::kStages > 1 && then < end) store_saved(1 - stage_);
      i = then;
      if (S::kStages > 1) stage_ = 1 - stage_;
    }
    copy_wait<0>();
  }

  // Products to P^T o drop and dS^T. Registers hold keys down, queries across.
  FOVEA_DEVICE void weigh(float (&p)[S::kN][4], float (&ds)[S::kN][4], std::int64_t i, bool partial,
                          std::uint32_t (&hidden)[2]) const {
    float cap_slopes[S::kMasked ? S::kN : 1][4];
    if constexpr (S::kMasked) {
      bend(p, cap_slopes, i, partial, hidden);
    } else {
      if (partial) hide(i, hidden);
    }
    const int column = lane() % 4 * 2;
    const float unit = S::kMasked && args_.bent ? 1.0f : args_.score_scale;
    const float keep_scale = args_.scores.dropout.keep_scale;
    const Shared<float> from = saved(stage_);
    std::uint32_t kept[2] = {};
    bool alone = false;
    FOVEA_UNROLL
    for (int n = 0; n < S::kN; ++n) {
      if constexpr (S::kMasked)
        if (args_.scores.dropout.threshold > 0 && n % 2 == 0) decide(i + 8 * n + column, kept);
      FOVEA_UNROLL
      for (int x = 0; x < 4; ++x) {
        const int at = 8 * n + column + x % 2;
        // The scaled score is rounded before lse comes in, as in forward: the only key has 1
        // exactly.
        const float weight = exp2((p[n][x] * unit - from[at]) * kLog2e);
        float grown = ds[n][x], share = weight;
        if (S::kMasked && args_.scores.dropout.threshold > 0) {
          const bool stays = (kept[x % 2] >> (n % 2 * 4 + x / 2 * 2 + lane() / 4 % 2) & 1) != 0;
          grown = stays ? grown * keep_scale : 0;
          share = stays ? weight : 0;
        }
        alone = alone || weight == 1;
        p[n][x] = share;
        ds[n][x] = weight * (grown - from[S::kRows + at]);
      }
    }
    if (alone) take_alone(p, ds);
    if constexpr (S::kMasked && !S::kForMask) {
      if (args_.scores.softcap > 0) {
        FOVEA_UNROLL
        for (int n = 0; n < S::kN; ++n) {
          FOVEA_UNROLL
          for (int x = 0; x < 4; ++x) ds[n][x] *= cap_slopes[n][x];
        }
      }
    }
    if (!partial) return;
    FOVEA_UNROLL
    for (int n = 0; n < S::kN; ++n) {
      FOVEA_UNROLL
      for (int x = 0; x < 4; ++x) {
        const bool sees = (hidden[x / 2] >> (2 * n + x % 2) & 1) == 0;
        p[n][x] = sees ? p[n][x] : 0;
        ds[n][x] = sees ? ds[n][x] : 0;
      }
    }
  }
  /// A key with all the weight: delta is its dP but for rounding, and dS is dlse.
  FOVEA_DEVICE void take_alone(const float (&p)[S::kN][4], float (&ds)[S::kN][4]) const {
    const Shared<float> from = saved(stage_);
    FOVEA_UNROLL
    for (int n = 0; n < S::kN; ++n) {
      FOVEA_UNROLL
      for (int x = 0; x < 4; ++x)
        if (p[n][x] == 1 && is_finite(ds[n][x]))
          ds[n][x] = from[2 * S::kRows + 8 * n + lane() % 4 * 2 + x % 2];
    }
  }
  /// Which of the lane's pairs band and lengths hide.
  FOVEA_DEVICE void hide(std::int64_t i, std::uint32_t (&hidden)[2]) const {
    FOVEA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const std::int64_t key = t().key + key_of(r);
      plain::Span rows{0, 0};
      if (key < t().sequence.kv_len)
        rows = plain::meet(t().band.rows_of_some({key, key + 1}), {0, t().sequence.q_len});
      const int column = lane() % 4 * 2;
      const int begin = static_cast<int>(plain::clamp(rows.begin - i, 0, S::kRows)) - column;
      const int end = static_cast<int>(plain::clamp(rows.end - i, 0, S::kRows)) - column;
      FOVEA_UNROLL
      for (int n = 0; n < 2 * S::kN; ++n) {
        const int at = n / 2 * 8 + n % 2;
        hidden[r] |= static_cast<std::uint32_t>(at < begin || at >= end) << n;
      }
    }
  }
  /// Products to scores, where masks or what bends scores have a say.
  FOVEA_DEVICE void bend(float (&p)[S::kN][4], float (&cap_slopes)[S::kN][4], std::int64_t i,
                         bool partial, std::uint32_t (&hidden)[2]) const {
    if (!args_.bent && !partial) return;
    FOVEA_UNROLL
    for (int n = 0; n < S::kN; ++n) {
      FOVEA_UNROLL
      for (int x = 0; x < 2; ++x) {
        const ScoreRow row =
            score_row(args_, t().sequence, t().band, t().head, i + 8 * n + lane() % 4 * 2 + x);
        FOVEA_UNROLL
        for (int r = 0; r < 2; ++r) {
          const std::int64_t key = t().key + key_of(r);
          const Score s = score_at(args_.scores, args_.bent ? args_.score_scale : 1.0f, row, key,
                                   p[n][2 * r + x]);
          p[n][2 * r + x] = s.value;
          cap_slopes[n][2 * r + x] = s.cap_slope;
          const bool sees = s.value != kNegativeInfinity || is_visible(row, key);
          hidden[r] |= static_cast<std::uint32_t>(!sees) << (2 * n + x);
        }
      }
    }
  }
  FOVEA_DEVICE bool is_visible(const ScoreRow& row, std::int64_t key) const {
    if (key < row.begin || key >= row.end) return false;
    return row.mask == nullptr || mask_at(args_.scores.mask, row.mask, key) != kNegativeInfinity;
  }
  /// What dropout keeps of query `i`, kept[0], and the next, kept[1]: bits as Keep::block has them.
  FOVEA_DEVICE void decide(std::int64_t i, std::uint32_t (&kept)[2]) const {
    const Keep keep(args_.scores.dropout, t().batch, t().head, args_.shape.q_heads);
    const std::int64_t key = t().key + warp() * 16 + lane() / 8 * 2;
    for (int x = 0; x < 2; ++x) kept[x] = keep.block(i + x, key);
  }

  template <class T>
  FOVEA_DEVICE bool has_non_finite(const T& tile, int rows, std::int64_t width) const {
    const int columns = static_cast<int>(width);
    bool found = false;
    for (int n = thread_index(); n < rows * columns; n += S::kThreads)
      found = found || !is_finite(to_f32(tile.data[T::at(n / columns, n % columns)]));
    return found;
  }

  const BackwardArgs& args_;
  const typename S::Keys keys_, values_;
  const typename S::Scores gradients_;
  const Shared<BackwardState> state_;
  bool keys_are_finite_ = true;
  int stage_ = 0;          ///< in use
  float fetched_[3] = {};  ///< lse, delta, dlse of a row on their way
};

template <class S>
class BackwardTask : BackwardTiles<S> {
  using Base = BackwardTiles<S>;
  using Base::args_, Base::keys_, Base::gradients_, Base::queries, Base::douts;
  using Base::state_, Base::keys_are_finite_;
  using Base::t, Base::key_of, Base::mask_class, Base::has_non_finite;
  using typename Base::Element;
  using typename Base::Mode;

 public:
  FOVEA_DEVICE explicit BackwardTask(const BackwardArgs& args) : Base(args) {}

  static constexpr int kBytes = S::kStateAt + static_cast<int>(sizeof(BackwardState));

  FOVEA_DEVICE void run(std::int64_t task) {
    if (thread_index() == 0) place(task);
    barrier();
    if (t().live) walk();
    barrier();  // the next task's state and copies
  }

 private:
  FOVEA_DEVICE void walk() {
    first_column_ = static_cast<int>(t().column_tile) * S::kColumns;
    columns_ = columns_of(args_.shape.head_dim);
    value_columns_ = columns_of(args_.shape.v_head_dim);
    this->load_keys_and_values();
    clear(dk_);
    clear(dv_);
    const std::int64_t group = args_.shape.q_heads / args_.shape.kv_heads;
    for (std::int64_t h = 0; h < group; ++h) {
      if (thread_index() == 0) this->enter_head(t().kv_head * group + h);
      barrier();
      this->for_tiles(
          t().queries.begin / S::kRows * S::kRows, t().queries.end,
          [&](std::int64_t i) { return next_tile(i); }, [&](std::int64_t i) { query_tile(i); });
      barrier();  // the next head's state
    }
    finish();
  }

  // Which keys and columns a task is of.
  FOVEA_DEVICE void place(std::int64_t task) const {
    const auto& shape = args_.shape;
    state_[0].column_tile = task % args_.column_tiles;
    task /= args_.column_tiles;
    // All heads' first tiles come first: deterministic sums wait for smaller numbers alone.
    const std::int64_t pairs = shape.batch * shape.kv_heads;
    state_[0].key_tile = task / pairs;
    this->enter_keys(task % pairs / shape.kv_heads, task % shape.kv_heads, task / pairs * S::kKeys);
  }
  /// Of a gradient of this width, in the block's share; may be negative.
  FOVEA_DEVICE int columns_of(std::int64_t width) const {
    return static_cast<int>(plain::lesser(S::kColumns, width - first_column_));
  }
  /// Deterministic sums count every tile of keys, so that none is left out.
  FOVEA_DEVICE std::int64_t next_tile(std::int64_t i) const {
    if constexpr (S::kMasked)
      if (args_.turns == nullptr)
        while (i < t().queries.end && mask_class(i) == kTileHidden) i += S::kRows;
    return i;
  }

  FOVEA_DEVICE void query_tile(std::int64_t i) {
    const bool partial = this->is_partial(i);
    float p[1][S::kN][4] = {}, ds[1][S::kN][4] = {};
    std::uint32_t hidden[2] = {};
    this->compute(p, ds, i, partial, hidden);
    const bool careful =
        partial && (!keys_are_finite_ ||
                    barrier_any(has_non_finite(queries(), S::kRows, args_.shape.head_dim) ||
                                has_non_finite(douts(), S::kRows, args_.shape.v_head_dim)));
    if (careful) {
      add_visible(p[0], ds[0], hidden, i);
      return;
    }
    if (wants_dv()) registers_by_columns<Mode>(dv_, p, shifted(douts()));
    if (wants_dk()) registers_by_columns<Mode>(dk_, ds, shifted(queries()));
    if (args_.dq.data != nullptr) {
      store_gradients(ds[0]);
      barrier();
      float dq[1][S::kQ][4] = {};
      columns_by_columns<Mode, S::kKeys>(dq, gradients_, dq_row(), keys_,
                                         first_column_ + dq_column());
      add_dq(dq[0], i);
    }
  }

  FOVEA_DEVICE bool wants_dk() const {
    return args_.dk.segments.count > 0 || args_.dk_sums.data != nullptr;
  }
  FOVEA_DEVICE bool wants_dv() const { return args_.dv.segments.count > 0; }
  /// The block's columns of a tile.
  template <class T>
  FOVEA_DEVICE T shifted(T tile) const {
    tile.data = tile.data.from(first_column_, T::kElements - first_column_);
    return tile;
  }

  // dS^T to shared memory.
  FOVEA_DEVICE void store_gradients(const float (&ds)[S::kN][4]) {
    FOVEA_UNROLL
    for (int n = 0; n < S::kN; ++n) {
      FOVEA_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int at = S::Scores::at(key_of(r), 8 * n + lane() % 4 * 2);
        if constexpr (kIsWide<Mode>) {
          gradients_.data[at] = ds[n][2 * r];
          gradients_.data[at + 1] = ds[n][2 * r + 1];
        } else {
          gradients_.data.template as<std::uint32_t>()[at / 2] =
              pack<Element>(ds[n][2 * r], ds[n][2 * r + 1]);
        }
      }
    }
  }

  /// The warp's rows and columns of dQ's tile.
  FOVEA_DEVICE int dq_row() const { return warp() % S::kRowGroups * 16; }
  FOVEA_DEVICE int dq_column() const { return warp() / S::kRowGroups * 8 * S::kQ; }

  // dQ += the tile.
  FOVEA_DEVICE void add_dq(const float (&dq)[S::kQ][4], std::int64_t i) const {
    if (args_.turns == nullptr) {
      for_dq(dq, i, [](float* to, float x) { add_to(to, x); });
      return;
    }
    wait_for_turn(i);
    for_dq(dq, i, [](float* to, float x) { *to += x; });
    pass_turn(i);
  }
  template <class Add>
  FOVEA_DEVICE void for_dq(const float (&dq)[S::kQ][4], std::int64_t i, Add&& add) const {
    const int column = dq_column() + lane() % 4 * 2;
    FOVEA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const std::int64_t row = i + dq_row() + r * 8 + lane() / 4;
      if (row >= t().sequence.q_len) continue;
      float* to = t().dq + row * args_.dq.row + first_column_ + column;
      FOVEA_UNROLL
      for (int n = 0; n < S::kQ; ++n) {
        FOVEA_UNROLL
        for (int x = 0; x < 2; ++x)
          if (column + 8 * n + x < columns_) add(to + 8 * n + x, dq[n][2 * r + x]);
      }
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
  FOVEA_DEVICE void add_visible(const float (&p)[S::kN][4], const float (&ds)[S::kN][4],
                                const std::uint32_t (&hidden)[2], std::int64_t i) {
    store_marked(p, hidden);
    barrier();
    if (wants_dv()) add_marked(dv_, douts(), value_columns_);
    barrier();
    store_marked(ds, hidden);
    barrier();
    if (wants_dk()) add_marked(dk_, queries(), columns_);
    if (args_.dq.data == nullptr) return;
    float dq[S::kQ][4] = {};
    FOVEA_ROLL
    for (int key = 0; key < S::kKeys; ++key) {
      FOVEA_UNROLL
      for (int n = 0; n < S::kQ; ++n) {
        FOVEA_UNROLL
        for (int x = 0; x < 4; ++x) {
          const int row = dq_row() + x / 2 * 8 + lane() / 4;
          const int column = first_column_ + dq_column() + 8 * n + lane() % 4 * 2 + x % 2;
          const Element g = gradients_.data[S::Scores::at(key, row)];
          if (!is_mark(g)) dq[n][x] += to_f32(g) * to_f32(keys_.data[S::Keys::at(key, column)]);
        }
      }
    }
    add_dq(dq, i);
  }
  /// Hidden elements are -0, and no others.
  FOVEA_DEVICE void store_marked(const float (&x)[S::kN][4], const std::uint32_t (&hidden)[2]) {
    FOVEA_UNROLL
    for (int n = 0; n < S::kN; ++n) {
      FOVEA_UNROLL
      for (int e = 0; e < 4; ++e) {
        Element stored = from_f32<Element>(x[n][e]);
        if (is_mark(stored)) stored = from_f32<Element>(0.0f);
        if ((hidden[e / 2] >> (2 * n + e % 2) & 1) != 0) stored = from_f32<Element>(-0.0f);
        gradients_.data[S::Scores::at(key_of(e / 2), 8 * n + lane() % 4 * 2 + e % 2)] = stored;
      }
    }
  }
  FOVEA_DEVICE static bool is_mark(Element x) {
    const float value = to_f32(x);
    return value == 0 && float_to_bits(value) != 0;
  }
  /// sums += X^T-like product of the marked tile's rows with the rows of `tile`.
  FOVEA_DEVICE void add_marked(float (&sums)[1][S::kC][4], const typename S::Rows& tile,
                               int columns) {
    FOVEA_ROLL
    for (int row = 0; row < S::kRows; ++row) {
      FOVEA_UNROLL
      for (int n = 0; n < S::kC; ++n) {
        FOVEA_UNROLL
        for (int x = 0; x < 4; ++x) {
          const int column = 8 * n + lane() % 4 * 2 + x % 2;
          if (column >= columns) continue;
          const Element weight = gradients_.data[S::Scores::at(key_of(x / 2), row)];
          if (!is_mark(weight))
            sums[0][n][x] +=
                to_f32(weight) * to_f32(tile.data[S::Rows::at(row, first_column_ + column)]);
        }
      }
    }
  }
  FOVEA_DEVICE static void clear(float (&sums)[1][S::kC][4]) {
    FOVEA_UNROLL
    for (int n = 0; n < S::kC; ++n) {
      FOVEA_UNROLL
      for (int x = 0; x < 4; ++x) sums[0][n][x] = 0;
    }
  }

  // dK, dV.
  FOVEA_DEVICE void finish() {
    store_sums(dk_, args_.dk, args_.dk_sums, args_.score_scale, columns_);
    store_sums(dv_, args_.dv, {}, args_.scores.dropout.keep_scale, value_columns_);
  }
  FOVEA_DEVICE void store_sums(const float (&sums)[1][S::kC][4], const plain::Sink& sink,
                               const Sums& to, float factor, int columns) {
    const plain::Place at{t().batch, t().kv_head, t().sequence.k_begin};
    FOVEA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const std::int64_t key = t().key + key_of(r);
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
      FOVEA_UNROLL
      for (int n = 0; n < S::kC; ++n) {
        const int column = 8 * n + lane() % 4 * 2;
        store_pair(run, first_column_ + column, columns - column, sums[0][n][2 * r] * factor,
                   sums[0][n][2 * r + 1] * factor);
      }
    }
  }

  int first_column_ = 0, columns_ = 0, value_columns_ = 0;
  float dk_[1][S::kC][4], dv_[1][S::kC][4];
};

}  // namespace fovea::cuda::FOVEA_WORLD
