// cuda.sm80.forward: attention on tensor cores without a matrix of scores, for any GPU from sm_80
// on.
//
//   S = scores where visible, -inf elsewhere (sm80_scores.h)
//   P = exp(S - m);  l = rowsum P [+ sink];  O = (P o drop) V      m: the row's maximum so far
//   out = O / l,  lse = m + log l
//
//   q [batch, q_heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim],
//   v [batch, kv_heads, kv_len, v_head_dim] -> out [batch, q_heads, q_len, v_head_dim],
//   lse [batch, q_heads, q_len]; packed or paged (plain_rows.h)
//
// A block takes a tile of kRows query rows of one head and walks the keys that they see in tiles of
// kKeys. A warp owns 16 kM whole rows, so that softmax needs no more than the four lanes that share
// a row, and its part of S serves as left operand of P V in the registers where it was made. While
// S of a tile is computed its V is on its way (cp.async); while the softmax and P V run, the next
// K. A tile is skipped, or computed without looking at the mask, or masked, by band, lengths and
// the prepass over the mask (mask_tiles.h).
//
// Decoding (kPacked): the rows of all query heads of a KV head make up one tile of 16, its keys are
// split among blocks, and merge.h puts the parts together.
//
// v_head_dim above 256: several blocks compute the same S for 256 value columns each.
//
// kInParts, f32 of several warps: K and V arrive as they are, in one place in turn. A thread takes
// apart what it has copied itself, V while K is read and K while V is, so that parts cost no
// barrier more; there is one behind each. Q is taken apart once: into fragments, which stay in
// registers, or, where they have no room there, into a tile of its own.
//
// Shared memory: Q [kRows, kDepth], K [kKeys, kDepth], V [kKeys, values], rows 16 bytes apart. In
// parts, 6 bytes an element, and 4 kKeys kDepth bytes where K and V arrive; Q in f32, where they
// will be, if fragments of it are kept.
// Registers of accumulators: kM (kKeys / 2 + values / 2) a thread, at most 192.
//
// Serves: f16, bf16, f32 (six products of bf16 each) and tf32; head_dim and v_head_dim 1
// to 512; everything of the contract but quantised modes. Prologues and odd layouts go through
// stage.h.
#pragma once

#include "cuda/sm80_forward.h"
#include "cuda/sm80_scores.h"
#include "cuda/sm80_tiles.h"
#include "cuda/warp_sequence.h"

namespace fovea::cuda::FOVEA_WORLD {

/// kMasked: masks, softcap, ALiBi, dropout and a scale of 0 or less are compiled in. kBlocks: how
/// many a multiprocessor should hold.
template <class Mode_, int kDepth_, int kRows_, int kKeys_, int kWarps_, bool kMasked_,
          bool kPacked_, int kBlocks_ = 1, bool kInParts_ = false>
struct ForwardShape {
  using Mode = Mode_;
  static constexpr int kDepth = kDepth_, kRows = kRows_, kKeys = kKeys_, kWarps = kWarps_;
  static constexpr bool kMasked = kMasked_, kPacked = kPacked_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kValues = kDepth < kMaxValueColumns ? kDepth : kMaxValueColumns;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kM = kRows / (16 * kWarps), kN = kKeys / 8, kO = kValues / 8;
  static constexpr bool kInParts = kInParts_;
  /// Fragments of Q stay in registers, where there are some left.
  static constexpr bool kKeepQueries =
      kInParts ? !kMasked && kM * kDepth <= 128 : !kIsWide<Mode> && kM * kDepth <= 128;
  using Queries = OperandTile<Mode, kRows, kDepth, kInParts && !kKeepQueries>;
  using Keys = OperandTile<Mode, kKeys, kDepth, kInParts>;
  using Values = OperandTile<Mode, kKeys, kValues, kInParts>;
  // Of what is in parts, Q arrives where K and V will be, and they where neither is. Fragments that
  // are kept are made of Q as it is.
  using StagedQueries = Staged<kRows, kDepth>;
  using StagedKeys = Staged<kKeys, kDepth>;
  using StagedValues = Staged<kKeys, kValues>;
  static constexpr int kKeysAt = kInParts && kKeepQueries ? 0 : Queries::kBytes;
  static constexpr int kValuesAt = kKeysAt + Keys::kBytes;
  static constexpr int kStagedAt = kValuesAt + Values::kBytes;
  static constexpr int kTilesEnd = kStagedAt + (kInParts ? StagedKeys::kBytes : 0);
  static constexpr int kQueriesEnd = !kInParts      ? 0
                                     : kKeepQueries ? Queries::kBytes
                                                    : kKeysAt + StagedQueries::kBytes;
  static constexpr int kStateAt = kTilesEnd > kQueriesEnd ? kTilesEnd : kQueriesEnd;
};

/// Tiles of keys by number.
struct KeyTiles {
  int end;                     ///< behind the last
  int inner_begin, inner_end;  ///< those of which every row sees every key
  int plain_end;               ///< of the inner ones, those copied whole, as the next one is
};

/// What a task is, the same for all threads; in shared memory, since registers are short.
struct ForwardState {
  std::int64_t batch, head, split;  ///< head: the first of those packed
  plain::Sequence sequence;
  plain::Band band;
  std::int64_t tile_row, rows;  ///< first and number of the (packed) rows
  plain::Span queries, keys;    ///< queries; keys that some of them see
  KeyTiles tiles;
  HeadRows q, k, v;
  int first_value, value_columns;
  bool live;
};

template <class S>
class ForwardTask {
  using Mode = typename S::Mode;
  static constexpr int kM = S::kM, kN = S::kN, kO = S::kO;

 public:
  static constexpr int kBytes = S::kStateAt + static_cast<int>(sizeof(ForwardState));

  FOVEA_DEVICE explicit ForwardTask(const ForwardArgs& args)
      : args_(args),
        queries_(0),
        keys_(S::kKeysAt),
        values_(S::kValuesAt),
        state_(shared_array<ForwardState>(S::kStateAt, 1)) {}

  FOVEA_DEVICE void run(std::int64_t task) {
    if (warp() == 0) place(task);
    barrier();
    if (t().live) walk();
    barrier();  // the next task's state and copies
  }

 private:
  FOVEA_DEVICE const ForwardState& t() const { return state_[0]; }

  FOVEA_DEVICE void walk() {
    begin();
    int tile = next_tile(static_cast<int>(t().keys.begin / S::kKeys));
    if constexpr (!S::kInParts) {
      load_keys(tile);
      copy_commit();
    }
    if constexpr (S::kKeepQueries) {
      copy_wait<S::kInParts ? 0 : 1>();
      barrier();  // Q is there
      load_fragments(query_fragments_, queries_, first_row());
    } else if constexpr (S::kInParts) {
      copy_wait<0>();
      take_apart<S::kThreads>(typename S::StagedQueries(S::kKeysAt), queries_);
    }
    if constexpr (S::kInParts) {
      barrier();  // Q is in parts, and K may come to where it was
      load_keys(tile);
      copy_commit();
    }
    while (tile < t().tiles.end) {
      if constexpr (kHasPlainTiles) {
        if (t().tiles.inner_begin <= tile)
          while (tile < t().tiles.plain_end) tile = take_tile<true>(tile);
      }
      tile = take_tile<false>(tile);
    }
    copy_wait<0>();
    finish();
  }

  /// Where copies of K and V arrive.
  using KeysTo = std::conditional_t<S::kInParts, typename S::StagedKeys, typename S::Keys>;
  using ValuesTo = std::conditional_t<S::kInParts, typename S::StagedValues, typename S::Values>;
  FOVEA_DEVICE static KeysTo keys_to() { return KeysTo(S::kInParts ? S::kStagedAt : S::kKeysAt); }
  FOVEA_DEVICE static ValuesTo values_to() {
    return ValuesTo(S::kInParts ? S::kStagedAt : S::kValuesAt);
  }
  using KeyCopy = WholeTile<S::kKeys, S::kDepth, S::kThreads, KeysTo>;
  using ValueCopy = WholeTile<S::kKeys, S::kValues, S::kThreads, ValuesTo>;
  static constexpr bool kHasPlainTiles =
      !S::kMasked && KeyCopy::kCan && ValueCopy::kCan && S::kValues == S::kDepth;

  /// A tile whose K is on its way; the next one's is when it returns that one's number. kPlain: of
  /// tiles.plain_end, which saves most of what is not a product or a weight.
  template <bool kPlain>
  FOVEA_DEVICE int take_tile(int tile) {
    float scores[kM][kN][4] = {};
    const auto multiply = [&] {
      if constexpr (S::kKeepQueries)
        fragments_by_rows<Product::scores>(scores, query_fragments_, keys_);
      else
        rows_by_rows<Mode, S::kDepth, Product::scores>(scores, queries_, first_row(), keys_);
    };
    // One tile is there, and another one is not read any more. In parts, what is there takes the
    // place of the last of its kind, which nobody has read since the barrier before.
    const auto swap = [&](const auto& staged, const auto& there, auto&& meet, auto&& load) {
      copy_wait<0>();
      if constexpr (S::kInParts)
        take_apart<S::kThreads>(staged, there);
      else
        meet();
      load();
      copy_commit();
      if constexpr (S::kInParts) meet();
    };
    const auto plainly = [] { barrier(); };
    int next = tile + 1;
    if constexpr (kPlain) {
      const ValueCopy values(t().v, tile);
      swap(keys_to(), keys_, plainly, [&] { values.copy_to(values_to()); });
      multiply();
      const KeyCopy keys(t().k, next);
      swap(values_to(), values_, plainly, [&] { keys.copy_to(keys_to()); });
      settle(scores);
    } else {
      swap(keys_to(), keys_, plainly, [&] {
        copy_rows<Mode, S::kKeys, S::kValues, S::kThreads>(values_to(), t().v, first_key(tile),
                                                           t().sequence.kv_len,
                                                           args_.shape.v_head_dim, t().first_value);
      });
      multiply();
      next = next_tile(next);
      const bool partial = is_partial(tile);
      bool odd = false;
      swap(
          values_to(), values_, [&] { odd = meet_over_values(partial); }, [&] { load_keys(next); });
      prepare_scores(scores, tile, partial);
      settle(scores);
      if (odd) add_non_finite(scores, first_key(tile));
    }
    float weights[2 * kM];
    registers_by_columns<Mode>(sums_, scores, values_,
                               [&](int n) { weigh(scores, weights, n, first_key(tile)); });
    FOVEA_UNROLL
    for (int r = 0; r < 2 * kM; ++r) weights_[r] += weights[r];
    return next;
  }
  FOVEA_DEVICE void load_keys(int tile) {
    if (tile < t().tiles.end)
      copy_rows<Mode, S::kKeys, S::kDepth, S::kThreads>(keys_to(), t().k, first_key(tile),
                                                        t().sequence.kv_len, args_.shape.head_dim);
  }

  // Which rows, keys and values a task is of; all lanes of one warp find out.
  FOVEA_DEVICE void place(std::int64_t task) const {
    const auto& shape = args_.shape;
    const std::int64_t heads = S::kPacked ? shape.kv_heads : shape.q_heads;
    const std::int64_t value_tile = task % args_.value_tiles;
    task /= args_.value_tiles;
    const std::int64_t split = task % args_.splits;
    task /= args_.splits;
    std::int64_t tile = task % args_.row_tiles;
    if (args_.last_rows_first) tile = args_.row_tiles - 1 - tile;
    task /= args_.row_tiles;
    const plain::Sequence sequence = sequence_by_warp(shape, args_.lengths, task / heads);
    if (lane() != 0) return;

    ForwardState& to = state_[0];
    to.split = split;
    to.batch = task / heads;
    const std::int64_t group = shape.q_heads / shape.kv_heads;
    to.head = task % heads * (S::kPacked ? group : 1);
    to.sequence = sequence;
    to.tile_row = tile * S::kRows;
    to.rows = to.sequence.q_len * pack();
    to.live = to.tile_row < to.rows;
    if (!to.live) return;

    to.band = plain::band_of(args_.band, to.sequence);
    const std::int64_t last = plain::lesser(to.tile_row + S::kRows, to.rows) - 1;
    to.queries = {to.tile_row / pack(), last / pack() + 1};
    to.keys = plain::meet(to.band.keys_of_some(to.queries), {0, to.sequence.kv_len});
    if (args_.splits > 1)
      to.keys =
          plain::meet(to.keys, {to.split * args_.split_keys, (to.split + 1) * args_.split_keys});
    if (to.keys.empty()) to.keys = {0, 0};
    to.q = head_rows<Mode>(args_.q, {to.batch, to.head, to.sequence.q_begin});
    const plain::Place keys_place{to.batch, to.head / group, to.sequence.k_begin};
    to.k = head_rows<Mode>(args_.k, keys_place);
    to.v = head_rows<Mode>(args_.v, keys_place);
    to.tiles = {behind_tile(to.keys.end), 0, 0, 0};
    const plain::Span inner = plain::meet(to.band.keys_of_every(to.queries), to.keys);
    if (!inner.empty()) {
      to.tiles.inner_begin = behind_tile(inner.begin);
      to.tiles.inner_end = static_cast<int>(inner.end / S::kKeys);
    }
    if constexpr (kHasPlainTiles) {
      const std::int64_t keys = to.sequence.kv_len;
      const int whole_k = whole_tiles<S::kKeys, S::kDepth>(to.k, keys, shape.head_dim);
      const int whole_v = whole_tiles<S::kKeys, S::kValues>(to.v, keys, shape.v_head_dim);
      const std::int64_t followed = plain::lesser(whole_k, to.tiles.end) - 1;
      to.tiles.plain_end =
          static_cast<int>(plain::lesser(plain::lesser(followed, whole_v), to.tiles.inner_end));
    }
    to.first_value = static_cast<int>(value_tile) * S::kValues;
    to.value_columns =
        static_cast<int>(plain::lesser(S::kValues, shape.v_head_dim - to.first_value));
  }
  /// The number of the first tile with no keys before `key`.
  FOVEA_DEVICE static int behind_tile(std::int64_t key) {
    return static_cast<int>((key + S::kKeys - 1) / S::kKeys);
  }
  FOVEA_DEVICE static std::int64_t first_key(int tile) {
    return static_cast<std::int64_t>(tile) * S::kKeys;
  }
  FOVEA_DEVICE std::int64_t pack() const { return S::kPacked ? args_.pack : 1; }
  /// Of the warp, in the tile.
  FOVEA_DEVICE int first_row() const { return warp() * 16 * kM; }
  /// Of the lane's rows, r = 0 .. 2 kM - 1, in the tile.
  FOVEA_DEVICE int row_of(int r) const { return first_row() + r / 2 * 16 + r % 2 * 8 + lane() / 4; }
  FOVEA_DEVICE std::int64_t query_of(int r) const { return (t().tile_row + row_of(r)) / pack(); }
  FOVEA_DEVICE std::int64_t head_of(int r) const {
    return S::kPacked ? t().head + (t().tile_row + row_of(r)) % pack() : t().head;
  }

  FOVEA_DEVICE auto queries_to() const {
    if constexpr (kHasParts<typename S::Queries>)
      return typename S::StagedQueries(S::kKeysAt);
    else
      return queries_;
  }
  // Load Q, clear O.
  FOVEA_DEVICE void begin() {
    const HeadRows& q = t().q;
    const std::int64_t head_step = args_.q.segments.at[0].head * sizeof(typename Mode::Element);
    if constexpr (S::kPacked)
      copy_any_rows<Mode, S::kRows, S::kDepth, S::kThreads>(
          queries_to(), args_.shape.head_dim, 0, q.aligned && head_step % 16 == 0,
          [&](int r) -> const char* {
            const std::int64_t row = t().tile_row + r;
            return row < t().rows ? q.at(row / pack()) + row % pack() * head_step : nullptr;
          });
    else
      copy_rows<Mode, S::kRows, S::kDepth, S::kThreads>(queries_to(), q, t().tile_row, t().rows,
                                                        args_.shape.head_dim);
    copy_commit();
    FOVEA_UNROLL
    for (int m = 0; m < kM; ++m) {
      FOVEA_UNROLL
      for (int n = 0; n < kO; ++n) {
        FOVEA_UNROLL
        for (int x = 0; x < 4; ++x) sums_[m][n][x] = 0;
      }
    }
    FOVEA_UNROLL
    for (int r = 0; r < 2 * kM; ++r) {
      maxima_[r] = kNegativeInfinity;
      bases_[r] = kInSteps ? 0 : kLargestFloat;
      weights_[r] = 0;
      if constexpr (S::kMasked)
        score_rows_[r] = score_row(args_, t().sequence, t().band, head_of(r), row_in_bounds(r));
    }
  }
  /// A query that is not there has the number q_len.
  FOVEA_DEVICE std::int64_t row_in_bounds(int r) const {
    return t().tile_row + row_of(r) < t().rows ? query_of(r) : t().sequence.q_len;
  }

  /// How the mask sees the tile of keys; mixed where nobody has looked.
  FOVEA_DEVICE int mask_class(int tile) const {
    if constexpr (!S::kMasked) return kTileVisible;
    if (args_.scores.mask.data == nullptr) return kTileVisible;
    if (args_.mask_tiles.data == nullptr) return kTileMixed;
    return class_of(args_.mask_tiles, t().batch, t().head, t().queries,
                    {first_key(tile), plain::lesser(first_key(tile + 1), t().keys.end)});
  }
  FOVEA_DEVICE int next_tile(int tile) const {
    if constexpr (S::kMasked)
      while (tile < t().tiles.end && mask_class(tile) == kTileHidden) ++tile;
    return tile;
  }

  FOVEA_DEVICE bool is_inside(int tile) const {
    return t().tiles.inner_begin <= tile && tile < t().tiles.inner_end;
  }
  /// Whether the band, the length or the mask hides some of the tile.
  FOVEA_DEVICE bool is_partial(int tile) const {
    return !is_inside(tile) || mask_class(tile) != kTileVisible;
  }

  /// A barrier, behind which the values are there; in a partial tile it is also said whether some
  /// of them are not finite. Each thread looks at what it has copied itself, which needs no
  /// barrier.
  FOVEA_DEVICE bool meet_over_values(bool partial) const {
    if (!partial) {
      barrier();
      return false;
    }
    if (S::kInParts || !copied_in_chunks<Mode>(t().v, args_.shape.v_head_dim)) barrier();
    return barrier_any(has_non_finite<S::kKeys, S::kValues, S::kThreads>(values_));
  }

  // Products to scores.
  FOVEA_DEVICE void prepare_scores(float (&scores)[kM][kN][4], int tile, bool partial) {
    const bool inside = is_inside(tile);
    const std::int64_t j = first_key(tile);
    const int column = lane() % 4 * 2;
    if (S::kMasked && (args_.bent || partial)) {
      FOVEA_UNROLL
      for (int m = 0; m < kM; ++m) {
        FOVEA_UNROLL
        for (int n = 0; n < kN; ++n) {
          FOVEA_UNROLL
          for (int x = 0; x < 4; ++x)
            scores[m][n][x] = score_at(args_.scores, bend_scale(), score_rows_[2 * m + x / 2],
                                       j + 8 * n + column + x % 2, scores[m][n][x])
                                  .value;
        }
      }
      return;
    }
    if (const float sign = score_sign(); sign != 1) {
      FOVEA_UNROLL
      for (int m = 0; m < kM; ++m) {
        FOVEA_UNROLL
        for (int n = 0; n < kN; ++n) {
          FOVEA_UNROLL
          for (int x = 0; x < 4; ++x) scores[m][n][x] *= sign;
        }
      }
    }
    if (inside) return;
    // Counted from the tile's first key: what a query sees moves on by one key a query.
    const IntSpan seen = counted_from(j, t().band.keys_of(query_of(0)));
    const IntSpan all = counted_from(j, t().keys);
    const auto rows = static_cast<int>(plain::lesser(t().rows - t().tile_row, S::kRows));
    FOVEA_UNROLL
    for (int r = 0; r < 2 * kM; ++r) {
      const int on =
          S::kPacked ? static_cast<int>(query_of(r) - query_of(0)) : row_of(r) - row_of(0);
      const IntSpan keys = meet({seen.begin + on, seen.end + on}, all);
      const int begin = keys.begin - column;
      const int end = row_of(r) < rows ? keys.end - column : begin;
      FOVEA_UNROLL
      for (int n = 0; n < kN; ++n) {
        FOVEA_UNROLL
        for (int x = 0; x < 2; ++x) {
          const int at = 8 * n + x;
          float& s = scores[r / 2][n][r % 2 * 2 + x];
          s = begin <= at && at < end ? s : kNegativeInfinity;
        }
      }
    }
  }
  /// Scores are kept as +-q.k, and multiplied by |scale| on the way to the exponent, or, where they
  /// are more than that, in units of 1. Hidden ones are -inf either way.
  FOVEA_DEVICE bool in_units() const { return S::kMasked && args_.bent; }
  FOVEA_DEVICE float score_sign() const {
    if constexpr (!S::kMasked) return 1;
    return args_.score_scale > 0 ? 1.0f : args_.score_scale < 0 ? -1.0f : 0.0f;
  }
  FOVEA_DEVICE float bend_scale() const { return in_units() ? args_.score_scale : score_sign(); }
  FOVEA_DEVICE float unit() const {
    return in_units() || args_.score_scale == 0 ? 1.0f : args_.score_scale * score_sign();
  }

  /// Exponents in two steps: a mask's lowest numbers would leave one step no digits.
  static constexpr bool kInSteps = kIsWide<Mode> || S::kMasked;
  /// What a maximum may lag behind: weights are 2^kLag at most. In f32 it may not: lse then holds
  /// the rounding of the very score that has most of the weight, and backward's P is free of it.
  static constexpr float kLag = kIsWide<Mode> ? 0 : 8;

  FOVEA_DEVICE float to_base2() const { return unit() * kLog2e; }
  /// exp(s - m), m as bases_ has it.
  FOVEA_DEVICE float weight_of(int r, float score) const {
    return exp2(kInSteps ? (score - bases_[r]) * to_base2() : fma(score, to_base2(), bases_[r]));
  }

  // The rows' maxima, which O and the sums of weights follow. They move seldom, since one that
  // grows little stays. All rows take each step together, so that they hide each other's latency.
  FOVEA_DEVICE void settle(const float (&scores)[kM][kN][4]) {
    float tops[2 * kM];
    FOVEA_UNROLL
    for (int r = 0; r < 2 * kM; ++r) {
      FOVEA_UNROLL
      for (int n = 0; n < kN; ++n) {
        const float(&s)[4] = scores[r / 2][n];
        const float top = max(s[r % 2 * 2], s[r % 2 * 2 + 1]);
        tops[r] = n == 0 ? top : max(tops[r], top);
      }
    }
    FOVEA_UNROLL
    for (int r = 0; r < 2 * kM; ++r) tops[r] = max(tops[r], shuffle_xor(tops[r], 1));
    FOVEA_UNROLL
    for (int r = 0; r < 2 * kM; ++r) tops[r] = max(tops[r], shuffle_xor(tops[r], 2));
    bool some_move = false;
    FOVEA_UNROLL
    for (int r = 0; r < 2 * kM; ++r) some_move = some_move || moves(r, tops[r]);
    if (!any(some_move)) return;
    FOVEA_UNROLL
    for (int r = 0; r < 2 * kM; ++r) {
      const bool does = moves(r, tops[r]);
      const float shrink = does ? exp2((maxima_[r] - tops[r]) * to_base2()) : 1.0f;
      maxima_[r] = does ? tops[r] : maxima_[r];
      bases_[r] = !does ? bases_[r] : kInSteps ? tops[r] : -tops[r] * to_base2();
      weights_[r] *= shrink;
      FOVEA_UNROLL
      for (int n = 0; n < kO; ++n) {
        sums_[r / 2][n][r % 2 * 2] *= shrink;
        sums_[r / 2][n][r % 2 * 2 + 1] *= shrink;
      }
    }
  }
  FOVEA_DEVICE bool moves(int r, float top) const {
    const float ahead =
        kInSteps ? (top - maxima_[r]) * to_base2() : fma(top, to_base2(), bases_[r]);
    return ahead > kLag;
  }

  // S of columns 8 n to 8 n + 15 to P o drop, but for the factor of those that stay, and sums of P.
  FOVEA_DEVICE void weigh(float (&scores)[kM][kN][4], float (&sums)[2 * kM], int n,
                          std::int64_t j) const {
    FOVEA_UNROLL
    for (int r = 0; r < 2 * kM; ++r) {
      FOVEA_UNROLL
      for (int x = 0; x < 4; ++x) {
        float& s = scores[r / 2][n + x / 2][r % 2 * 2 + x % 2];
        s = weight_of(r, s);
        sums[r] = n + x == 0 ? s : sums[r] + s;
      }
    }
    if constexpr (S::kMasked) {
      if (args_.scores.dropout.threshold > 0) drop(scores, n, j);
    }
  }

  FOVEA_DEVICE void drop(float (&scores)[kM][kN][4], int n, std::int64_t j) const {
    const std::int64_t key = j + 8 * n + lane() % 4 * 2;
    if constexpr (S::kPacked) {  // neighbouring rows are of different heads
      FOVEA_ROLL
      for (int r = 0; r < 2 * kM; ++r) {
        const Keep keep = keep_of(r);
        FOVEA_UNROLL
        for (int x = 0; x < 4; ++x)
          if (!keep.one(query_of(r), key + x / 2 * 8 + x % 2))
            scores[0][n + x / 2][r % 2 * 2 + x % 2] = 0;
      }
      return;
    }
    const Keep keep = keep_of(0);
    FOVEA_UNROLL
    for (int m = 0; m < kM; ++m) {
      const std::uint32_t kept = keep.block(query_of(2 * m), key);
      FOVEA_UNROLL
      for (int x = 0; x < 8; ++x) {
        const int row = x / 4, side = x / 2 % 2;
        if ((kept >> x & 1) == 0) scores[m][n + side][row * 2 + x % 2] = 0;
      }
    }
  }
  FOVEA_DEVICE Keep keep_of(int r) const {
    return Keep(args_.scores.dropout, t().batch, head_of(r), args_.shape.q_heads);
  }

  // A value that is not finite reaches the rows that see it and no others: where some do not, it is
  // added by element, and the product gets a 0. Weights of hidden keys are 0, and so may be others,
  // so that visibility is asked for again.
  FOVEA_DEVICE void add_non_finite(const float (&scores)[kM][kN][4], std::int64_t j) {
    FOVEA_ROLL
    for (int key = 0; key < S::kKeys; ++key) {
      FOVEA_UNROLL
      for (int r = 0; r < 2 * kM; ++r) {
        float score = 0;
        FOVEA_UNROLL
        for (int n = 0; n < kN; ++n) {
          const float pair =
              key % 2 == 0 ? scores[r / 2][n][r % 2 * 2] : scores[r / 2][n][r % 2 * 2 + 1];
          score = key / 8 == n ? pair : score;
        }
        score = shuffle(score, lane() / 4 * 4 + key % 8 / 2);
        if (!sees(r, j + key)) continue;
        float weight = weight_of(r, score);
        if constexpr (S::kMasked) {
          if (args_.scores.dropout.threshold > 0 && !keep_of(r).one(query_of(r), j + key))
            weight = 0;
        }
        FOVEA_UNROLL
        for (int n = 0; n < kO; ++n) {
          FOVEA_UNROLL
          for (int x = 0; x < 2; ++x) {
            const int column = 8 * n + lane() % 4 * 2 + x;
            if (column >= t().value_columns) continue;
            const float v = value_at(values_, key, column);
            if (!is_finite(v)) sums_[r / 2][n][r % 2 * 2 + x] += weight * v;
          }
        }
      }
    }
    barrier();
    FOVEA_ROLL
    for (int n = thread_index(); n < S::kKeys * S::kValues; n += S::kThreads) {
      const int key = n / S::kValues, column = n % S::kValues;
      if (!is_finite(value_at(values_, key, column))) clear_at(values_, key, column);
    }
    barrier();
  }
  FOVEA_DEVICE bool sees(int r, std::int64_t key) const {
    const std::int64_t i = row_in_bounds(r);
    if (i >= t().sequence.q_len) return false;
    const plain::Span seen = plain::meet(t().band.keys_of(i), t().keys);
    if (key < seen.begin || key >= seen.end) return false;
    if constexpr (S::kMasked) {
      const ScoreRow& row = score_rows_[r];
      if (row.mask != nullptr)
        return mask_at(args_.scores.mask, row.mask, key) != kNegativeInfinity;
    }
    return true;
  }

  // Divide by the sums of weights, store out and lse, or the parts of them.
  FOVEA_DEVICE void finish() {
    FOVEA_UNROLL
    for (int r = 0; r < 2 * kM; ++r) {
      float weight = weights_[r];
      weight += shuffle_xor(weight, 1);
      weight += shuffle_xor(weight, 2);
      if (t().tile_row + row_of(r) >= t().rows) continue;
      const float top = maxima_[r] * unit();
      if (args_.splits > 1)
        store_part(r, top, weight);
      else
        store_row(
            r, sum_up(top, weight, float_at(args_.scores.sinks, 0, head_of(r), kNegativeInfinity)));
    }
  }
  FOVEA_DEVICE void store_part(int r, float top, float weight) {
    const RowSpace space = rows_by_queries(args_);
    const std::int64_t row =
        t().split * space.array_rows() +
        space.place({t().batch, head_of(r), t().sequence.q_begin}, query_of(r));
    if (lane() % 4 == 0 && t().first_value == 0) {
      args_.partial_maxima[row] = top;
      args_.partial_weights[row] = weight;
    }
    float* to = args_.partial_sums + row * args_.partial_width + t().first_value;
    FOVEA_UNROLL
    for (int n = 0; n < kO; ++n) {
      const int column = 8 * n + lane() % 4 * 2;
      FOVEA_UNROLL
      for (int x = 0; x < 2; ++x)
        if (column + x < t().value_columns) to[column + x] = sums_[r / 2][n][r % 2 * 2 + x];
    }
  }
  FOVEA_DEVICE void store_row(int r, const Total& total) {
    const plain::Place place{t().batch, head_of(r), t().sequence.q_begin};
    const std::int64_t i = query_of(r);
    if (lane() % 4 == 0 && t().first_value == 0 && args_.lse.data != nullptr)
      args_.lse.data[t().batch * args_.lse.batch + place.head * args_.lse.head +
                     (place.first_row + i) * args_.lse.row] = total.lse;
    const plain::Run<char*> to = plain::run_at(args_.out.segments, place, i, 1);
    const float share = total.share * args_.scores.dropout.keep_scale;
    const int column = lane() % 4 * 2;
    store_row_pairs<Mode, kO>(to, t().first_value + column, t().value_columns - column,
                              [&](int n, int x) {
                                // A share of 0 too: 0 times what is not finite must show.
                                return sums_[r / 2][n][r % 2 * 2 + x] * share;
                              });
  }

  const ForwardArgs& args_;
  const typename S::Queries queries_;
  const typename S::Keys keys_;
  const typename S::Values values_;
  const Shared<ForwardState> state_;

  Fragment<Mode> query_fragments_[S::kKeepQueries ? S::kDepth / 16 : 1][kM];
  float sums_[kM][kO][4];
  float maxima_[2 * kM], weights_[2 * kM];
  /// What exponents are counted from, one that moved with its maximum: the maximum, or, where they
  /// are one step, minus it in their unit; for rows without one, what makes them 0 all the same.
  float bases_[2 * kM];
  ScoreRow score_rows_[S::kMasked ? 2 * kM : 1];
};

}  // namespace fovea::cuda::FOVEA_WORLD
