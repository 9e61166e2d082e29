// cpu.{amxbf16,avx512bf16,avx512,avx2,portable}.forward: attention without a matrix of scores.
//
//   S = scores where visible, -inf elsewhere (scores.h);  P = exp(S - m);  l = rowsum P [+ sink]
//   O = (P o drop) V,  out = O / l,  lse = m + log l      m: a reference close to the row's maximum
//
//   q [batch, q_heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim],
//   v [batch, kv_heads, kv_len, v_head_dim] -> out [batch, q_heads, q_len, v_head_dim],
//   lse [batch, q_heads, q_len]; any strides, packed or paged, in segments (plain_rows.h)
//
// A task is up to 512 query rows of one head: panels of 64. It packs its queries once, transposed,
// and walks the keys in tiles of 96. For each tile and panel it computes S^T [96 keys, 64 queries]:
// the keys' elements are broadcast from where they lie, so K is not packed, and the softmax runs
// down the columns, without sums across a vector. P^T then serves as the left operand of P V as it
// is. Register tiles are 6 x 64 (AVX-512), 6 x 16 (AVX2), 6 x 8 (portable); with AMX tiles have 32
// keys and O is computed transposed (panel_products.h). Rows in f16 or bf16, and rows that QK-norm
// or RoPE change, become f32 on the way to their packed form (prologue.h).
//
// A panel meets a tile of keys in one of three ways: nothing is visible (skipped), all is (no
// mask), or some is (the rest is set to -inf; a band's visible parts alone are multiplied).
// With AVX-512, P is computed against the reference of the tile before; only if its sum grows
// beyond 2^16 is the tile done again with a new one. A reference moves by 2^8 or more or not at
// all, so that O is seldom rescaled.
//
// Scratch a worker: 2 x 512 rows x 64 columns and a few tiles, at most 2 MB (flash_kernels.cpp). A
// row's result depends neither on the task that it is part of nor on the number of threads.
//
// Serves: f32, f16 and bf16 (products in f32, or, amxbf16 and avx512bf16, of bf16 pairs), head_dim
// and v_head_dim 1 to 512, all of the contract but quantised evaluation.
#include "cpu/panel_products.h"
#include "cpu/scores.h"
#include "cpu/softmax.h"

namespace fovea::cpu {
namespace {

/// A new reference is taken where a score exceeds the old one by more than 2^kSlack, or, where that
/// is found out late, where the weights' sum exceeds 2^(2 kSlack).
constexpr float kSlack = 8;
constexpr float kTooHeavy = 65536;
/// References below this have not been set.
constexpr float kUnset = -1e38f;
/// Keys of a tile, and of a span: tiles that share the packing of V and, while references stay, one
/// product P V. With AMX all that a tile needs stays in the L1 cache, and O is read and written
/// once a span; vectors and tile registers do not work side by side, as the latter halve the speed
/// of the former.
constexpr bool kHasMatrixUnit = kDepth > kPack;
constexpr std::int64_t kTileKeys = kHasMatrixUnit ? 32 : kForwardKeys;
constexpr std::int64_t kSpan = kHasMatrixUnit ? kForwardSpan : kForwardKeys;
/// Words that they make in a column of V.
constexpr std::int64_t kValueRows = kSpan / kPack;
/// Vectors handled side by side in the softmax.
constexpr int kAbreast = 4;

class ForwardTask {
 public:
  ForwardTask(const ForwardArgs& args, float* scratch)
      : args_(args),
        shape_(args.shape),
        depth_(words(args.shape.head_dim)),
        padded_(round_up(args.shape.v_head_dim, kLanes)),
        queries_(scratch + args.layout.queries),
        sums_(scratch + args.layout.sums),
        scores_(scratch + args.layout.scores),
        probabilities_(kPack > 1 ? scratch + args.layout.probabilities : scores_),
        bias_(scratch + args.layout.bias),
        values_(scratch + args.layout.values),
        key_rows_(scratch + args.layout.keys),
        staged_(scratch + args.layout.staged),
        maxima_(scratch + args.layout.maxima),
        weights_(scratch + args.layout.weights),
        rescale_(scratch + args.layout.rescale),
        units_(args) {
    slack_ = kSlack / units_.to_base2 < kFloatMax ? kSlack / units_.to_base2 : kFloatMax;
  }

  void run(std::int64_t task) {
    const Sequence s = place(task);
    if (rows_.empty()) return;
    Scores scores(args_, s, head_);
    sc_ = &scores;
    panels_ = (rows_.end - rows_.begin + kPanel - 1) / kPanel;
    keys_place_ = {batch_, head_ / (shape_.q_heads / shape_.kv_heads), s.k_begin};
    if (args_.scores.dropout.threshold > 0)
      keep_ = Keep(args_.scores.dropout, batch_, head_, shape_.q_heads);

    begin();
    const Span keys = meet(scores.band().keys_of_some(rows_), {0, s.kv_len});
    // Spans begin at multiples of their size whatever the rows, so that rows do not depend on
    // tasks.
    for (std::int64_t j = greater(keys.begin, 0) / kSpan * kSpan; j < keys.end; j += kSpan)
      key_span({j, lesser(j + kSpan, s.kv_len)}, j + kSpan >= keys.end);
    finish();
  }

 private:
  /// Which batch, head and rows a task is.
  Sequence place(std::int64_t task) {
    const std::int64_t tiles = (shape_.q_len + args_.task_rows - 1) / args_.task_rows;
    const std::int64_t pair = task / tiles;
    std::int64_t tile = task % tiles;
    if (args_.last_rows_first) tile = tiles - 1 - tile;
    batch_ = pair / shape_.q_heads;
    head_ = pair % shape_.q_heads;
    const Sequence s = sequence_of(args_, batch_);
    rows_ = {tile * args_.task_rows, lesser((tile + 1) * args_.task_rows, s.q_len)};
    rows_place_ = {batch_, head_, s.q_begin};
    return s;
  }

  Span panel_rows(std::int64_t p) const {
    const std::int64_t begin = rows_.begin + p * kPanel;
    return {begin, lesser(begin + kPanel, rows_.end)};
  }

  // Pack Q.
  void begin() {
    const std::int64_t padded_rows = panels_ * kPanel;
    for (std::int64_t p = 0; p < panels_; ++p) {
      const Span rows = panel_rows(p);
      pack_across(stage_words(args_.q, rows_place_, rows, staged_), rows.end - rows.begin, depth_,
                  queries_ + p * kPanel * depth_, kPanel);
    }
    if (units_.sign != 1)
      for (std::int64_t n = 0; n < padded_rows * depth_; n += kLanes)
        store(queries_ + n, load(queries_ + n) * splat(units_.sign));
    for (std::int64_t n = 0; n < padded_rows; ++n) {
      maxima_[n] = n < rows_.end - rows_.begin ? -kInfinity : 0.0f;
      weights_[n] = 0;
    }
    for (std::int64_t p = 0; p < panels_; ++p) cautious_[p] = fresh_[p] = true;
  }

  void key_span(Span span, bool last) {
    pack_right(stage_words(args_.v, keys_place_, span, staged_), span.end - span.begin,
               shape_.v_head_dim, values_, kValueRows);
    values_are_finite_ = Answer::unknown;
    span_ = span;
    span_keys_ = stage_words(args_.k, keys_place_, span, key_rows_);

    std::int64_t panels = 0;
    for (std::int64_t p = 0; p < panels_; ++p)
      panels += meet(sc_->band().keys_of_some(panel_rows(p)), span).empty() ? 0 : 1;
    const std::int64_t steps =
        panels * (kPanel / kTileCols * (kTileKeys / kTileRows) + kPanel / kTileRows);
    prefetch_ = last ? fetch_queries(steps) : fetch_keys(span.end, steps);
    for (std::int64_t p = 0; p < panels_; ++p) {
      const Span rows = panel_rows(p);
      for (std::int64_t j = span.begin; j < span.end; j += kTileKeys) {
        const Span tile{j, lesser(j + kTileKeys, span.end)};
        const Span keys = meet(sc_->band().keys_of_some(rows), tile);
        if (!keys.empty()) key_tile(p, rows, whole_steps(keys, tile));
      }
      accumulate(p, rows);
    }
  }

  /// Keys whose P waits to be multiplied by V.
  struct Pending {
    Span keys{0, 0};
    bool rescales = false;  ///< O is older than their references
    bool hides = false;     ///< not all is visible: seen_ says what is
  };
  std::uint64_t* seen_from(std::int64_t key) { return seen_ + (key - span_.begin); }
  void see_all(Span keys) {
    for (std::int64_t j = keys.begin; j < keys.end; ++j) *seen_from(j) = ~std::uint64_t{0};
  }

  // P of one tile, behind what is pending.
  void key_tile(std::int64_t p, Span rows, Span keys) {
    std::uint64_t* seen = seen_from(keys.begin);
    const Cover cover = sc_->see_across(rows, keys, bias_, seen);
    if (cover == Cover::none) return accumulate(p, rows);
    const bool hides = cover == Cover::some;
    if (args_.scores.dropout.threshold > 0) keep(rows, keys);
    for (bool cautious = cautious_[p] || !kExp2TakesAll;; cautious = true) {
      if (cautious) accumulate(p, rows);  // with the references that it has
      compute_scores(p, rows, keys, hides ? seen : nullptr);
      if (!weigh(p, keys, cautious)) continue;
      if (pending_.keys.empty()) pending_ = {keys, cautious, hides};
      break;
    }
    if (hides && !pending_.hides) see_all(pending_.keys);
    if (!hides && pending_.hides) see_all(keys);
    pending_.hides = pending_.hides || hides;
    pending_.keys.end = keys.end;
  }

  // S^T for the panel's queries; -inf where not visible.
  void compute_scores(std::int64_t p, Span rows, Span keys, const std::uint64_t* seen) {
    // Multiply only those queries that the band lets see one of these keys.
    const auto narrow = [&](std::int64_t j, std::int64_t height) {
      if (seen == nullptr) return Span{0, kPanel};
      const std::int64_t key = keys.begin + j;
      const Span some = meet(sc_->band().rows_of_some({key, key + height}), rows);
      return Span{some.begin - rows.begin, some.end - rows.begin};
    };
    dot_panel(span_keys_.from(keys.begin - span_.begin), keys.end - keys.begin,
              queries_ + p * kPanel * depth_, depth_, scores_, kScoresRow, kPanel, narrow,
              [&] { prefetch_.step(); });
    if (units_.bent) sc_->bend_across(rows, keys, bias_, scores_);
    if (seen == nullptr) return;
    float* s = scores_;
    for (const std::uint64_t* end = seen + (keys.end - keys.begin); seen < end;
         ++seen, s += kScoresRow)
      for (int x = 0; x < kPanel; x += kLanes)
        store(s + x, select(lanes_of(*seen >> x), load(s + x), splat(-kInfinity)));
  }

  // What dropout keeps of a tile: which rows, for each key.
  void keep(Span rows, Span keys) {
    for (std::int64_t j = 0; j < keys.end - keys.begin; j += 64) {
      keep_.along(rows.begin, kPanel, keys.begin + j, kept_ + j);
      transpose_bits(kept_ + j);
    }
  }

  // P of a tile and its sums. False: the weights have grown too heavy against the old references;
  // nothing but S is lost.
  bool weigh(std::int64_t p, Span keys, bool cautious) {
    const std::int64_t n = keys.end - keys.begin;
    const std::int64_t behind =
        pending_.keys.empty() ? 0 : (keys.begin - pending_.keys.begin) / kPack;
    float* to = probabilities_ + behind * kScoresRow;
    const bool drops = args_.scores.dropout.threshold > 0;
    bool moved = false;
    for (int x = 0; x < kPanel; x += kAbreast * kLanes) {
      float* maxima = maxima_ + p * kPanel + x;
      float* weights = weights_ + p * kPanel + x;
      float* rescale = rescale_ + p * kPanel + x;
      Vec base[kAbreast], weight[kAbreast];
      if (cautious) {
        moved |= move_references(scores_ + x, n, maxima, rescale, base);
      } else {
#pragma GCC unroll 4
        for (int u = 0; u < kAbreast; ++u) base[u] = load(maxima + u * kLanes);
      }
      if (drops)
        weigh_columns<true>(x, n, base, weight, to + x);
      else
        weigh_columns<false>(x, n, base, weight, to + x);
      if (!cautious) {
        bool heavy = false;
#pragma GCC unroll 4
        for (int u = 0; u < kAbreast; ++u) heavy |= any(less(splat(kTooHeavy), weight[u]));
        if (heavy) return false;
      }
#pragma GCC unroll 4
      for (int u = 0; u < kAbreast; ++u) {
        const Vec old = load(weights + u * kLanes);
        const Vec factor = cautious ? load(rescale + u * kLanes) : splat(1);
        store(weights + u * kLanes, fma(old, factor, weight[u]));
      }
    }
    fill_words(to, kScoresRow, n);
    cautious_[p] = moved;
    return true;
  }

  // P = exp2((S - m) log2(e)), exactly 1 where S = m, and the sums of P, for some columns. `to`
  // gets P as words, or P o drop but for the factor of those that stay; it may be S.
  template <bool kDrops>
  FOVEA_INLINE void weigh_columns(int x, std::int64_t keys, const Vec* base, Vec* weight,
                                  float* to) {
    const Vec to_base2 = splat(units_.to_base2);
#pragma GCC unroll 4
    for (int u = 0; u < kAbreast; ++u) weight[u] = zero();
    const auto weight_of = [&](std::int64_t j, int u) __attribute__((always_inline)) {
      const Vec s = load(scores_ + j * kScoresRow + x + u * kLanes);
      const Vec e = exp2((s - base[u]) * to_base2);
      weight[u] = weight[u] + e;
      return kDrops ? select(lanes_of(kept_[j] >> (x + u * kLanes)), e, zero()) : e;
    };
    for (std::int64_t j = 0; j < keys; j += kPack, to += kScoresRow) {
#pragma GCC unroll 4
      for (int u = 0; u < kAbreast; ++u) {
        const Vec e = weight_of(j, u);
        Vec next = zero();
        if (kPack > 1 && j + 1 < keys) next = weight_of(j + 1, u);
        store(to + u * kLanes, paired(e, next));
      }
    }
  }

  /// Takes a new reference where a score exceeds the old one by far. True if any did.
  bool move_references(float* scores, std::int64_t keys, float* maxima, float* rescale, Vec* base) {
    Vec top[kAbreast];
    maxima_of(scores, keys, top);
    bool far_out = false;
#pragma GCC unroll 4
    for (int u = 0; u < kAbreast; ++u)
      far_out |= any(less(splat(units_.largest), absolute(top[u])));
    if (far_out) {
      bound(scores, keys);
      maxima_of(scores, keys, top);
    }
    bool moved = false;
#pragma GCC unroll 4
    for (int u = 0; u < kAbreast; ++u) {
      const Vec old = load(maxima + u * kLanes);
      const Mask exceeds = less(old + splat(slack_), top[u]);
      moved |= any(exceeds);
      const Vec now = select(exceeds, top[u], old);
      base[u] = select(equal(now, splat(-kInfinity)), zero(), now);
      store(maxima + u * kLanes, now);
      const Vec shrinks = exp2((old - base[u]) * splat(units_.to_base2));
      store(rescale + u * kLanes, select(exceeds, shrinks, splat(1)));
    }
    // Rows that saw nothing yet, or whose scores are extreme, cannot do without.
    return moved || far_out || sees_nothing_yet(maxima);
  }

  static bool sees_nothing_yet(const float* maxima) {
    bool some = false;
    for (int u = 0; u < kAbreast; ++u) some |= any(less(load(maxima + u * kLanes), splat(kUnset)));
    return some;
  }

  static void maxima_of(const float* scores, std::int64_t keys, Vec* top) {
#pragma GCC unroll 4
    for (int u = 0; u < kAbreast; ++u) top[u] = splat(-kInfinity);
    for (std::int64_t j = 0; j < keys; ++j, scores += kScoresRow)
#pragma GCC unroll 4
      for (int u = 0; u < kAbreast; ++u) top[u] = max(top[u], load(scores + u * kLanes));
  }

  /// Finite scores, brought within what f32 can hold once they are scaled to base 2.
  void bound(float* scores, std::int64_t keys) const {
    for (std::int64_t j = 0; j < keys; ++j, scores += kScoresRow)
      for (int u = 0; u < kAbreast; ++u)
        store(scores + u * kLanes, bounded(load(scores + u * kLanes), units_.largest));
  }

  // O = rescale O + P V for what is pending.
  void accumulate(std::int64_t p, Span rows) {
    const Span keys = pending_.keys;
    if (keys.empty()) return;
    const std::uint64_t* seen = pending_.hides ? seen_from(keys.begin) : nullptr;
    const bool rescales = pending_.rescales;
    pending_ = {};
    // The last step may hold a value that nobody sees.
    const bool shares_step = keys.end < span_.end && (keys.end - span_.begin) % kDepth != 0;
    const bool partial = seen != nullptr || shares_step;
    const bool by_element =
        partial && !known(values_are_finite_, [&] {
          return right_is_finite(values_, shape_.v_head_dim, kValueRows, span_.end - span_.begin);
        });
    DownProduct product{};
    product.y = probabilities_;
    product.y_row = kScoresRow;
    product.depth = keys.end - keys.begin;
    product.columns = rows.end - rows.begin;
    product.z = values_;
    product.z_capacity = kValueRows;
    product.z_first = (keys.begin - span_.begin) / kPack;
    product.x = sums_ + p * kPanel * padded_;
    product.padded = padded_;
    product.first = fresh_[p] && !partial;
    if (partial) clear_if_fresh(p);
    fresh_[p] = false;
    if (rescales) product.rescale = rescale_ + p * kPanel;
    if (by_element) return add_down_visible(product, seen);
    const auto narrow = [&](std::int64_t i, std::int64_t height) {
      if (seen == nullptr) return Span{0, product.depth};
      const std::int64_t row = rows.begin + i;
      Span some = meet(sc_->band().keys_of_some({row, row + height}), keys);
      if (!some.empty()) some = whole_steps(some, keys);
      return Span{some.begin - keys.begin, some.end - keys.begin};
    };
    add_down(product, narrow, [&] { prefetch_.step(); });
  }

  /// Zeros for an O that holds nothing yet.
  void clear_if_fresh(std::int64_t p) {
    if (!fresh_[p]) return;
    float* o = sums_ + p * kPanel * padded_;
    for (std::int64_t n = 0; n < kPanel * padded_; n += kLanes) store(o + n, zero());
  }

  /// The keys and values of the next tile.
  Prefetch fetch_keys(std::int64_t j, std::int64_t steps) const {
    if (!args_.k.in_place || !args_.v.in_place) return {};
    const std::int64_t n = greater(0, lesser(kForwardKeys, shape_.kv_len - j));
    return {rows_in_place(args_.k, keys_place_, j),
            shape_.head_dim,
            rows_in_place(args_.v, keys_place_, j),
            shape_.v_head_dim,
            n,
            steps};
  }
  /// The queries of the next rows, which another task probably wants.
  Prefetch fetch_queries(std::int64_t steps) const {
    if (!args_.q.in_place) return {};
    const std::int64_t n = greater(0, lesser(args_.task_rows, shape_.q_len - rows_.end));
    const Rows q = rows_in_place(args_.q, rows_place_, rows_.end);
    return {q, shape_.head_dim, q, 0, n, steps};
  }

  // Divide by the sums of weights, store out and lse.
  void finish() {
    for (std::int64_t p = 0; p < panels_; ++p) clear_if_fresh(p);
    const RowsOfSums sums(sums_, padded_, staged_);
    const std::int64_t rows = rows_.end - rows_.begin;
    // Logarithms in a loop of their own, so that they do not wait for each other.
    for (std::int64_t n = 0; n < rows; ++n) {
      const Total total = total_of(args_, units_, head_, maxima_[n], weights_[n]);
      maxima_[n] = total.lse;
      weights_[n] = total.share;
    }
    for (std::int64_t n = 0; n < rows; ++n)
      finish_row(args_, rows_place_, rows_.begin + n, {maxima_[n], weights_[n]}, sums.at(n));
  }

  const ForwardArgs& args_;
  const Shape& shape_;
  const std::int64_t depth_;   ///< head_dim in words
  const std::int64_t padded_;  ///< v_head_dim in whole vectors
  float *const queries_, *const sums_, *const scores_, *const probabilities_, *const bias_;
  float* const values_;
  float *const key_rows_, *const staged_;
  float *const maxima_, *const weights_, *const rescale_;
  const ScoreUnits units_;
  float slack_ = 0;  ///< kSlack in scores' units

  // The task.
  std::int64_t batch_ = 0, head_ = 0, panels_ = 0;
  Span rows_{0, 0};
  Place rows_place_{}, keys_place_{};
  const Scores* sc_ = nullptr;
  Keep keep_;
  Prefetch prefetch_;
  Span span_{0, 0};
  Rows span_keys_{};
  std::uint64_t seen_[kSpan];   ///< what see_across says of the span's keys, for one panel
  std::uint64_t kept_[2 * 64];  ///< what dropout keeps of a tile
  Pending pending_;
  Answer values_are_finite_ = Answer::unknown;
  bool cautious_[kForwardMaxRows / kPanel] = {};
  bool fresh_[kForwardMaxRows / kPanel] = {};  ///< O holds nothing yet
};

}  // namespace

void FOVEA_ISA_NAME(flash_forward)(void* opaque, int worker) {
  auto& args = *static_cast<ForwardArgs*>(opaque);
  const FlushSubnormals flush;
  [[maybe_unused]] const MatrixUnit unit;
  ForwardTask task(args, args.scratch + worker * args.layout.floats);
  for (;;) {
    const std::int64_t n = __atomic_fetch_add(&args.next_task, 1, __ATOMIC_RELAXED);
    if (n >= args.tasks) return;
    task.run(n);
  }
}

}  // namespace fovea::cpu
