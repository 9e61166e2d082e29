// A tile of keys and one of queries, as cuda.sm80.backward and the mask's gradient see them: what
// is loaded, and the weights and the scores' gradients that come of it.
//
//   P = exp(S - lse) where visible, else 0     dS = P o (drop o dO V^T - delta) o softcap'
//
// Registers hold keys down, queries across. Warps stand in two dimensions: a warp owns 16 kM keys
// by 8 kN queries, so that every fragment in shared memory serves several products.
#pragma once

#include <type_traits>

#include "cuda/sm80_backward.h"
#include "cuda/sm80_scores.h"
#include "cuda/sm80_tiles.h"
#include "cuda/warp_sequence.h"

namespace fovea::cuda::FOVEA_WORLD {

/// How the warps of a block share a tile. keys: groups along the keys of P and dS, and of dK and
/// dV; the rest of the warps share queries, or columns. rows: groups along the queries of dQ.
template <int kWarps_, int kKeys_, int kRows_>
struct WarpGrid {
  static constexpr int kWarps = kWarps_, kKeyGroups = kKeys_, kRowGroups = kRows_;
  static_assert(kWarps % kKeyGroups == 0 && kWarps % kRowGroups == 0);
};

/// kStages: tiles of queries in shared memory; with two, one is on its way while the other is in
/// use. kMasked: masks, softcap, ALiBi and dropout are compiled in. kForMask: dS is the mask's
/// gradient. kInParts: operands are in parts, and the next tile of queries is on its way as it is.
template <class Mode_, int kDepth_, int kKeys_, int kRows_, class Warps_, int kStages_,
          bool kMasked_, bool kForMask_ = false, bool kInParts_ = false>
struct BackwardShape {
  using Mode = Mode_;
  using Element = typename Mode::Element;
  using Warps = Warps_;
  static constexpr int kDepth = kDepth_, kKeys = kKeys_, kRows = kRows_;
  static constexpr int kStages = kStages_;
  static constexpr bool kMasked = kMasked_, kForMask = kForMask_, kInParts = kInParts_;
  static constexpr int kWarps = Warps::kWarps, kThreads = 32 * kWarps;
  static constexpr int kColumns = kDepth < kMaxGradientColumns ? kDepth : kMaxGradientColumns;
  // A warp's parts: P and dS [16 kM keys, 8 kN queries], dK and dV [16 kM keys, 8 kC columns], dQ
  // [16 kQ queries, 8 kQC columns].
  static constexpr int kAcross = kWarps / Warps::kKeyGroups;
  static constexpr int kM = kKeys / (16 * Warps::kKeyGroups), kN = kRows / (8 * kAcross);
  static constexpr int kC = kColumns / (8 * kAcross);
  static constexpr int kQ = kRows / (16 * Warps::kRowGroups);
  static constexpr int kQC = kColumns / (8 * (kWarps / Warps::kRowGroups));
  static_assert(kM > 0 && kN > 1 && kC > 1 && kQ > 0 && kQC > 1);

  using Keys = OperandTile<Mode, kKeys, kDepth, kInParts>;
  using Rows = OperandTile<Mode, kRows, kDepth, kInParts>;
  using Scores = OperandTile<Mode, kKeys, kRows, kInParts>;
  static constexpr int kValuesAt = Keys::kBytes, kQueriesAt = kValuesAt + Keys::kBytes;
  // A stage: Q, dO, lse, delta.
  static constexpr int kDoutsAt = Rows::kBytes, kSavedAt = 2 * Rows::kBytes;
  static constexpr int kStageBytes = kSavedAt + 2 * kRows * static_cast<int>(sizeof(float));
  static constexpr int kWeightsAt = kQueriesAt + kStages * kStageBytes;
  static constexpr int kGradientsAt = kWeightsAt + (kForMask ? 0 : Scores::kBytes);
  static constexpr int kStagedAt = kGradientsAt + (kForMask ? 0 : Scores::kBytes);
  // In parts: where the next Q and dO arrive. K and V did where the first ones go later.
  using StagedKeys = Staged<kKeys, kDepth>;
  using StagedRows = Staged<kRows, kDepth>;
  static constexpr int kStateAt = kStagedAt + (kInParts ? 2 * StagedRows::kBytes : 0);
  static_assert(!kInParts || (kStages == 1 && kQueriesAt + StagedKeys::kBytes <= kStagedAt));
  /// The next tile of queries is on its way while one is in use.
  static constexpr bool kAhead = kInParts || kStages > 1;
};

/// Which tile of keys, of which head: the same for all threads; in shared memory, since registers
/// are short.
struct BackwardState {
  std::int64_t batch, kv_head, head, last_head;
  std::int64_t key;  ///< the first of the tile
  std::int64_t key_tile, column_tile;
  int first_column;            ///< of the block's share of gradients
  int columns, value_columns;  ///< in it, of dQ and dK, and of dV; may be negative
  plain::Sequence sequence;
  plain::Band band;
  plain::Span keys, queries;   ///< keys that there are; queries that see some of them
  plain::Span whole;           ///< queries that see every key of the tile
  int plain_begin, plain_end;  ///< tiles of such queries that are copied whole, as is any next one
  HeadRows k, v, q, dout;
  const float* lse;    ///< of the head's first row
  const float* delta;  ///< likewise
  const float* dlse;   ///< likewise, or null
  float* dq;           ///< likewise
  bool live;
};

template <class S>
class BackwardTiles {
 protected:
  using Mode = typename S::Mode;
  using Element = typename S::Element;
  static constexpr int kM = S::kM, kN = S::kN;
  /// Exponents in the steps of forward, which make an only key's weight 1 exactly; in 16 bits
  /// without masks in one step. A mask's lowest numbers leave that step no digits.
  static constexpr bool kInSteps = kIsWide<Mode> || S::kMasked;

  /// What there is to know of the lane's pairs: by key, a bit a query.
  struct Marks {
    std::uint32_t hidden[2 * kM] = {};
    std::uint32_t dropped[S::kMasked ? 2 * kM : 1] = {};
    bool some_alone = false;  ///< some key has all the weight of a query

    FOVEA_DEVICE static bool has(const std::uint32_t (&of)[2 * kM], int m, int n, int x) {
      return (of[2 * m + x / 2] >> (2 * n + x % 2) & 1) != 0;
    }
  };

  FOVEA_DEVICE explicit BackwardTiles(const BackwardArgs& args)
      : args_(args),
        keys_(0),
        values_(S::kValuesAt),
        state_(shared_array<BackwardState>(S::kStateAt, 1)) {}

  FOVEA_DEVICE const BackwardState& t() const { return state_[0]; }
  FOVEA_DEVICE static int stage_at(int stage) { return S::kQueriesAt + stage * S::kStageBytes; }
  FOVEA_DEVICE typename S::Rows queries() const { return typename S::Rows(stage_at(stage_)); }
  FOVEA_DEVICE typename S::Rows douts() const {
    return typename S::Rows(stage_at(stage_) + S::kDoutsAt);
  }
  /// lse, unless kInSteps times log2(e), then delta
  FOVEA_DEVICE static Shared<float> saved(int stage) {
    return shared_array<float>(stage_at(stage) + S::kSavedAt, 2 * S::kRows);
  }

  /// The warp's first key, and the lane's keys, r = 0 .. 2 kM - 1, in the tile.
  FOVEA_DEVICE static int first_key() { return warp() / S::kAcross * 16 * kM; }
  FOVEA_DEVICE static int key_of(int r) {
    return first_key() + r / 2 * 16 + r % 2 * 8 + lane() / 4;
  }
  /// The warp's first query, and the lane's first, in the tile.
  FOVEA_DEVICE static int first_row() { return warp() % S::kAcross * 8 * kN; }
  FOVEA_DEVICE static int row_of_lane() { return first_row() + lane() % 4 * 2; }

  // What one warp, and one thread, find out for all.
  FOVEA_DEVICE void enter_keys(std::int64_t batch, std::int64_t kv_head, std::int64_t key) const {
    const plain::Sequence sequence = sequence_by_warp(args_.shape, args_.lengths, batch);
    if (lane() != 0) return;
    BackwardState& to = state_[0];
    to.batch = batch;
    to.sequence = sequence;
    to.band = plain::band_of(args_.band, to.sequence);
    to.kv_head = kv_head;
    to.key = key;
    to.keys = {key, plain::lesser(key + S::kKeys, to.sequence.kv_len)};
    to.queries = {0, 0};
    if (!to.keys.empty())
      to.queries = plain::meet(to.band.rows_of_some(to.keys), {0, to.sequence.q_len});
    if (to.queries.empty()) to.queries = {0, 0};
    to.whole = {0, 0};
    if (key + S::kKeys <= to.sequence.kv_len)
      to.whole = plain::meet(to.band.rows_of_every(to.keys), {0, to.sequence.q_len});
    if (to.whole.empty()) to.whole = {0, 0};
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
    if constexpr (kHasPlainTiles) {
      const std::int64_t rows = to.sequence.q_len;
      const int whole_q = whole_tiles<S::kRows, S::kDepth>(to.q, rows, args_.shape.head_dim);
      const int whole_do = whole_tiles<S::kRows, S::kDepth>(to.dout, rows, args_.shape.v_head_dim);
      const std::int64_t whole = plain::lesser(whole_q, whole_do);
      const std::int64_t tiles = (to.queries.end + S::kRows - 1) / S::kRows;
      const std::int64_t whole_next = whole < tiles ? whole - 1 : whole;
      to.plain_begin = static_cast<int>((to.whole.begin + S::kRows - 1) / S::kRows);
      to.plain_end = static_cast<int>(plain::lesser(to.whole.end / S::kRows, whole_next));
    }
  }

  /// They are there when the first tile of queries is.
  FOVEA_DEVICE void load_keys_and_values() {
    const auto load = [&](const typename S::Keys& tile, const HeadRows& from, std::int64_t width) {
      const auto copy_to = [&](const auto& to) {
        copy_rows<Mode, S::kKeys, S::kDepth, S::kThreads>(to, from, t().key, t().sequence.kv_len,
                                                          width);
        copy_commit();
      };
      if constexpr (S::kInParts) {
        const typename S::StagedKeys staged(S::kQueriesAt);
        copy_to(staged);
        copy_wait<0>();
        take_apart<S::kThreads>(staged, tile);
      } else {
        copy_to(tile);
      }
    };
    load(keys_, t().k, args_.shape.head_dim);
    load(values_, t().v, args_.shape.v_head_dim);
  }

  FOVEA_DEVICE int mask_class(std::int64_t i) const {
    if constexpr (!S::kMasked) return kTileVisible;
    if (args_.scores.mask.data == nullptr) return kTileVisible;
    return class_of(args_.mask_tiles, t().batch, t().head,
                    {i, plain::lesser(i + S::kRows, t().queries.end)}, t().keys);
  }

  /// Whether the band or a mask hides some pair of the tiles.
  FOVEA_DEVICE bool is_partial(std::int64_t i) const {
    return !plain::covers(t().whole, {i, i + S::kRows}) || mask_class(i) != kTileVisible;
  }

  /// Where copies of Q and dO arrive.
  using RowsTo = std::conditional_t<S::kInParts, typename S::StagedRows, typename S::Rows>;
  FOVEA_DEVICE static RowsTo queries_to(int stage) {
    return RowsTo(S::kInParts ? S::kStagedAt : stage_at(stage));
  }
  FOVEA_DEVICE static RowsTo douts_to(int stage) {
    return RowsTo(S::kInParts ? S::kStagedAt + S::StagedRows::kBytes
                              : stage_at(stage) + S::kDoutsAt);
  }
  using RowsCopy = WholeTile<S::kRows, S::kDepth, S::kThreads, RowsTo>;
  static constexpr bool kHasPlainTiles = !S::kMasked && !S::kForMask && RowsCopy::kCan;

  // Load Q, dO, lse, delta.
  template <bool kWhole>
  FOVEA_DEVICE void load_queries(int tile, int stage) {
    const std::int64_t i = row_of_tile(tile), end = t().sequence.q_len;
    const RowsTo queries = queries_to(stage), douts = douts_to(stage);
    if constexpr (kWhole) {
      RowsCopy(t().q, tile).copy_to(queries);
      RowsCopy(t().dout, tile).copy_to(douts);
    } else {
      copy_rows<Mode, S::kRows, S::kDepth, S::kThreads>(queries, t().q, i, end,
                                                        args_.shape.head_dim);
      copy_rows<Mode, S::kRows, S::kDepth, S::kThreads>(douts, t().dout, i, end,
                                                        args_.shape.v_head_dim);
    }
    copy_commit();
    // What the rows have saved comes by way of registers, one a thread: store_saved().
    static_assert(2 * S::kRows <= S::kThreads);
    const std::int64_t row = i + thread_index() % S::kRows;
    fetched_ = 0;
    if ((!kWhole && row >= end) || thread_index() >= 2 * S::kRows) return;
    if (thread_index() >= S::kRows) {
      fetched_ = t().delta[row * args_.delta.row];
      return;
    }
    const float lse = t().lse[row * args_.lse.row];
    fetched_ = lse == kNegativeInfinity ? kInfinity : lse;  // every p is 0
    if constexpr (!kInSteps) fetched_ *= kLog2e;
  }
  FOVEA_DEVICE void store_saved(int stage) const {
    if (thread_index() < 2 * S::kRows) saved(stage)[thread_index()] = fetched_;
  }
  static FOVEA_DEVICE std::int64_t row_of_tile(int tile) {
    return static_cast<std::int64_t>(tile) * S::kRows;
  }
  /// Calls use(i, plain) for tiles of queries in turn, loaded, that begin before row end(). plain:
  /// a type, true for those of plain_end. next(tile): the first of the tiles from there on.
  template <class End, class Next, class Use>
  FOVEA_DEVICE void for_tiles(std::int64_t begin, End&& end, Next&& next, Use&& use) {
    const auto there = [&](int tile) { return row_of_tile(tile) < end(); };
    int tile = next(static_cast<int>(begin / S::kRows));
    stage_ = 0;
    if (S::kAhead && there(tile)) {
      load_queries<false>(tile, 0);
      if constexpr (!S::kInParts) store_saved(0);
    }
    while (there(tile)) {
      if constexpr (kHasPlainTiles) {
        if (t().plain_begin <= tile)
          for (; tile < t().plain_end; ++tile)
            take_tile(tile, tile + 1, there(tile + 1), std::true_type{}, use);
      }
      if (!there(tile)) break;
      const int then = next(tile + 1);
      take_tile(tile, then, there(then), std::false_type{}, use);
      tile = then;
    }
    copy_wait<0>();
  }
  template <class Plain, class Use>
  FOVEA_DEVICE void take_tile(int tile, int then, bool more, Plain plain, Use&& use) {
    if constexpr (S::kInParts) {
      copy_wait<0>();
      barrier();  // the last tile's products are done
      take_apart<S::kThreads>(queries_to(0), queries());
      take_apart<S::kThreads>(douts_to(0), douts());
      store_saved(0);
      if (more) load_queries<plain>(then, 0);
      barrier();  // the tile is there
      use(row_of_tile(tile), plain);
      return;
    }
    if constexpr (S::kStages == 1) {
      barrier();  // the last tile's products are done
      load_queries<plain>(tile, 0);
      store_saved(0);
    }
    copy_wait<0>();
    barrier();  // the tile is there, and nobody reads the last one any more
    if (S::kStages > 1 && more) load_queries<plain>(then, 1 - stage_);
    use(row_of_tile(tile), plain);
    if (S::kStages > 1 && more) store_saved(1 - stage_);
    if (S::kStages > 1) stage_ = 1 - stage_;
  }

  /// P and dS, of Q and dO as loaded. store(m, n, r, x0, x1): P o drop of two queries, where masks
  /// are compiled in; else it is P, which then comes back in p.
  template <class Store>
  FOVEA_DEVICE void compute(float (&p)[kM][kN][4], float (&ds)[kM][kN][4], std::int64_t i,
                            bool partial, Marks& marks, Store&& store) {
    rows_by_rows<Mode, S::kDepth, Product::transposed_scores>(p, keys_, first_key(), queries(),
                                                              first_row());
    if constexpr (S::kMasked) {
      if (args_.scores.dropout.threshold > 0) drop(i, marks);
    }
    weigh(p, i, partial, marks, store);
    rows_by_rows<Mode, S::kDepth>(ds, values_, first_key(), douts(), first_row());
    take_gradients(p, ds, i, partial, marks);
  }

  // Products to weights; where masks are compiled in, to P o softcap', with a sign where a key has
  // all the weight, and P o drop is stored.
  template <class Store>
  FOVEA_DEVICE void weigh(float (&p)[kM][kN][4], std::int64_t i, bool partial, Marks& marks,
                          Store&& store) const {
    const bool bent = S::kMasked && args_.bent;
    const float unit = bent ? 1.0f : args_.score_scale;
    const Shared<float> lse = saved(stage_);
    FOVEA_UNROLL
    for (int n = 0; n < kN; ++n) {
      const int at = row_of_lane() + 8 * n;
      ScoreRow rows[S::kMasked ? 2 : 1];
      if constexpr (S::kMasked) {
        if (bent || partial) {
          for (int x = 0; x < 2; ++x)
            rows[x] = score_row(args_, t().sequence, t().band, t().head, i + at + x);
        }
      }
      FOVEA_UNROLL
      for (int m = 0; m < kM; ++m) {
        float slopes[4] = {1, 1, 1, 1}, shares[4];
        if constexpr (S::kMasked) {
          if (bent || partial) bend(p[m][n], slopes, rows, m, n, marks);
        }
        FOVEA_UNROLL
        for (int x = 0; x < 4; ++x) {
          float weight;
          if constexpr (kInSteps)
            weight = exp2((p[m][n][x] * unit - lse[at + x % 2]) * kLog2e);
          else
            weight = exp2(fma(p[m][n][x], unit * kLog2e, -lse[at + x % 2]));
          if constexpr (kInSteps) marks.some_alone = marks.some_alone || weight == 1;
          if constexpr (S::kMasked) {
            weight = Marks::has(marks.hidden, m, n, x) ? 0 : weight;
            shares[x] = Marks::has(marks.dropped, m, n, x) ? 0 : weight;
            weight = weight == 1 ? -slopes[x] : weight * slopes[x];
          }
          p[m][n][x] = weight;
        }
        if constexpr (S::kMasked) {
          store(m, n, 0, shares[0], shares[1]);
          store(m, n, 1, shares[2], shares[3]);
        }
      }
    }
  }

  // dO V^T to dS.
  FOVEA_DEVICE void take_gradients(float (&p)[kM][kN][4], float (&ds)[kM][kN][4], std::int64_t i,
                                   bool partial, const Marks& marks) const {
    const Shared<float> from = saved(stage_);
    const float keep_scale = args_.scores.dropout.keep_scale;
    FOVEA_UNROLL
    for (int n = 0; n < kN; ++n) {
      const int at = S::kRows + row_of_lane() + 8 * n;
      FOVEA_UNROLL
      for (int m = 0; m < kM; ++m) {
        FOVEA_UNROLL
        for (int x = 0; x < 4; ++x) {
          float grown = ds[m][n][x];
          if constexpr (S::kMasked)
            grown = Marks::has(marks.dropped, m, n, x) ? 0 : grown * keep_scale;
          ds[m][n][x] = p[m][n][x] * (grown - from[at + x % 2]);
        }
      }
    }
    if (marks.some_alone)
      take_alone(p, ds, i, [&](int m, int n, int x) {
        return S::kMasked ? p[m][n][x] < 0 : p[m][n][x] == 1;
      });
    if (!partial) return;
    if constexpr (!kInSteps) {
      if (some_see_one_key(i)) {
        const std::uint32_t rows = rows_that_see_one_key(i);
        take_alone(p, ds, i, [&](int, int n, int x) { return (rows >> (2 * n + x % 2) & 1) != 0; });
      }
    }
    FOVEA_UNROLL
    for (int m = 0; m < kM; ++m) {
      LaneRows rows[S::kMasked ? 1 : 2];
      if constexpr (!S::kMasked)
        for (int r = 0; r < 2; ++r) rows[r] = rows_of_key(2 * m + r, i);
      FOVEA_UNROLL
      for (int n = 0; n < kN; ++n) {
        FOVEA_UNROLL
        for (int x = 0; x < 4; ++x) {
          bool sees;
          if constexpr (S::kMasked)
            sees = !Marks::has(marks.hidden, m, n, x);
          else
            sees = rows[x / 2].has(8 * n + x % 2);
          p[m][n][x] = sees ? p[m][n][x] : 0;
          ds[m][n][x] = sees ? ds[m][n][x] : 0;
        }
      }
    }
  }
  /// A key with all the weight: delta is its dP but for rounding, and dS is dlse.
  template <class Is>
  FOVEA_DEVICE void take_alone(float (&p)[kM][kN][4], float (&ds)[kM][kN][4], std::int64_t i,
                               Is&& is_alone) const {
    const int first = fresh(row_of_lane());
    FOVEA_UNROLL
    for (int m = 0; m < kM; ++m) {
      FOVEA_UNROLL
      for (int n = 0; n < kN; ++n) {
        FOVEA_UNROLL
        for (int x = 0; x < 4; ++x) {
          if (!is_alone(m, n, x)) continue;
          if constexpr (!S::kMasked) p[m][n][x] = 1;
          if (!is_finite(ds[m][n][x])) {
            ds[m][n][x] *= S::kMasked ? -1.0f : 1.0f;
            continue;
          }
          const float weight = S::kMasked ? -p[m][n][x] : 1.0f;
          const std::int64_t row = i + first + 8 * n + x % 2;
          const bool has_dlse = t().dlse != nullptr && row < t().sequence.q_len;
          ds[m][n][x] = has_dlse ? weight * t().dlse[row * args_.dlse.row] : 0;
        }
      }
    }
  }
  FOVEA_DEVICE plain::Span keys_of(std::int64_t row) const {
    return plain::meet(t().band.keys_of(row), {0, t().sequence.kv_len});
  }
  FOVEA_DEVICE static bool is_one(plain::Span keys) {
    return keys.end > 0 && keys.begin == keys.end - 1;
  }
  /// Whether some query of a tile may see one key and no sink: of a range of queries, the first or
  /// the last sees fewest.
  FOVEA_DEVICE bool some_see_one_key(std::int64_t i) const {
    if (float_at(args_.scores.sinks, 0, t().head, kNegativeInfinity) != kNegativeInfinity)
      return false;
    const plain::Span first = keys_of(i);
    const plain::Span last = keys_of(plain::lesser(i + S::kRows, t().sequence.q_len) - 1);
    return first.empty() || is_one(first) || last.empty() || is_one(last);
  }
  /// Of the lane's queries, a bit each.
  FOVEA_DEVICE std::uint32_t rows_that_see_one_key(std::int64_t i) const {
    std::uint32_t rows = 0;
    const std::int64_t first = i + fresh(row_of_lane());
    FOVEA_ROLL
    for (int n = 0; n < 2 * kN; ++n)
      rows |= static_cast<std::uint32_t>(is_one(keys_of(first + n / 2 * 8 + n % 2))) << n;
    return rows;
  }
  /// Which queries see a key, counted from the lane's first in the tile.
  struct LaneRows {
    int begin = 0, end = 0;
    FOVEA_DEVICE bool has(int row) const { return begin <= row && row < end; }
  };
  /// By band and lengths; of the lane's key r. Counted from the tile's first query: what sees a key
  /// moves on by one query a key.
  FOVEA_DEVICE LaneRows rows_of_key(int r, std::int64_t i) const {
    const std::int64_t key = t().key + fresh(key_of(0));
    const IntSpan seeing = counted_from(i, t().band.rows_of_some({key, key + 1}));
    const int on = r / 2 * 16 + r % 2 * 8, first = row_of_lane();
    if (counted_from(key, t().sequence.kv_len) <= on) return {};
    const IntSpan rows =
        meet({seeing.begin + on, seeing.end + on}, counted_from(i, {0, t().sequence.q_len}));
    return {rows.begin - first, rows.end - first};
  }
  /// The lane's pairs that band and lengths hide, as bits.
  FOVEA_DEVICE void hide(std::int64_t i, Marks& marks) const {
    FOVEA_UNROLL
    for (int r = 0; r < 2 * kM; ++r) {
      const LaneRows rows = rows_of_key(r, i);
      FOVEA_UNROLL
      for (int n = 0; n < 2 * kN; ++n)
        marks.hidden[r] |= static_cast<std::uint32_t>(!rows.has(n / 2 * 8 + n % 2)) << n;
    }
  }
  /// Products to scores, where masks or what bends scores have a say: two queries by two keys.
  FOVEA_DEVICE void bend(float (&p)[4], float (&slopes)[4], const ScoreRow (&rows)[2], int m, int n,
                         Marks& marks) const {
    FOVEA_UNROLL
    for (int x = 0; x < 4; ++x) {
      const ScoreRow& row = rows[x % 2];
      const std::int64_t key = t().key + key_of(2 * m + x / 2);
      const Score s = score_at(args_.scores, args_.bent ? args_.score_scale : 1.0f, row, key, p[x]);
      p[x] = s.value;
      if constexpr (!S::kForMask) slopes[x] = s.cap_slope;
      const bool sees = s.value != kNegativeInfinity || is_visible(row, key);
      marks.hidden[2 * m + x / 2] |= static_cast<std::uint32_t>(!sees) << (2 * n + x % 2);
    }
  }
  FOVEA_DEVICE bool is_visible(const ScoreRow& row, std::int64_t key) const {
    if (key < row.begin || key >= row.end) return false;
    return row.mask == nullptr || mask_at(args_.scores.mask, row.mask, key) != kNegativeInfinity;
  }
  /// Which of the lane's pairs dropout takes away.
  FOVEA_DEVICE void drop(std::int64_t i, Marks& marks) const {
    const Keep keep(args_.scores.dropout, t().batch, t().head, args_.shape.q_heads);
    FOVEA_UNROLL
    for (int m = 0; m < kM; ++m) {
      FOVEA_UNROLL
      for (int n = 0; n < kN; n += 2) {
        for (int x = 0; x < 2; ++x) {
          // Bits as Keep::block has them: of two neighbouring keys, the lane has one.
          const std::uint32_t kept = keep.block(i + row_of_lane() + 8 * n + x,
                                                t().key + first_key() + 16 * m + lane() / 8 * 2) >>
                                     (lane() / 4 % 2);
          FOVEA_UNROLL
          for (int bit = 0; bit < 4; ++bit)
            marks.dropped[2 * m + bit % 2] |= (~kept >> (2 * bit) & 1) << (2 * (n + bit / 2) + x);
        }
      }
    }
  }

  const BackwardArgs& args_;
  const typename S::Keys keys_, values_;
  const Shared<BackwardState> state_;
  int stage_ = 0;      ///< in use
  float fetched_ = 0;  ///< lse or delta of a row on its way
};

}  // namespace fovea::cuda::FOVEA_WORLD
