// cpu.{amxbf16,avx512bf16,avx512,avx2,portable}.backward: gradients of attention without a matrix
// of scores.
//
//   P = exp(S - lse) where visible, else 0 (scores.h)      delta = rowsum(dO o O) - dlse
//   dS = P o (drop o dO V^T - delta)
//   dV = (P o drop)^T dO,  dK^ = scale (dS o softcap')^T Q^,  dQ^ = scale (dS o softcap') K^
//   dmask = dS summed over what the mask is broadcast over
//   dsink = -sum_i exp(sink - lse_i) delta_i
//   dq, dk and the norms' weights from dQ^, dK^ (prologue.h)
//
//   q, dq [batch, q_heads, q_len, head_dim]; k, dk [batch, kv_heads, kv_len, head_dim];
//   v, dv [batch, kv_heads, kv_len, v_head_dim]; out, dout [batch, q_heads, q_len, v_head_dim];
//   lse, dlse [batch, q_heads, q_len]; any strides, packed, in segments (plain_rows.h)
//
// A task is one tile of up to 256 keys of one KV head, with all query heads of its group. It packs
// K and V transposed once and walks the queries in tiles of 96. Scores lie keys across: P and dS
// [96, 64] a panel serve as they are as left operands, of dV and dK down the columns and of dQ
// along the rows. dK and dV stay in the worker's scratch until the task ends.
//
// dQ of a tile of queries is the sum over all tiles of keys. The tasks add to it in the order of
// their keys: a counter for each tile of queries says whose turn it is. Tasks are claimed in that
// order as well, so a task only ever waits for one that is running, and in practice hardly at all,
// since the tasks of a head trail each other along the queries. The sum is thus the same for any
// number of threads, and needs one f32 dQ (dq itself where it can hold it).
//
// Phases: prepare (delta, dsink), the tasks, store_dq (dQ^ to dq, where dq itself is not the sum),
// dmask (where it is wanted: dS anew, tile by tile of the mask, so that sums over heads and
// sequences have one order).
//
// A pair of tiles is skipped, or computed without a mask, or masked, as in forward.
//
// Scratch a worker: below 2 MB (flash_kernels.cpp).
//
// Serves: f32, f16 and bf16 (products in f32, or, amxbf16 and avx512bf16, of bf16 pairs), head_dim
// and v_head_dim 1 to 512, all of the contract but paged caches and quantised evaluation.
#include <sched.h>

#include "cpu/panel_products.h"
#include "cpu/prologue.h"
#include "cpu/scores.h"

namespace fovea::cpu {
namespace {

/// An lse below this belongs to scores that were raised to the least that forward tells apart.
constexpr float kFarOut = 1e37f;
constexpr float kLeastScore = static_cast<float>(-static_cast<double>(kFloatMax) / kLog2e);

/// Row i of dQ's sums.
FOVEA_INLINE float* dq_row(const BackwardArgs& args, const Place& place, std::int64_t i) {
  const Output& dq = args.dq_sums;
  return dq.data + place.batch * dq.batch + place.head * dq.head +
         (args.sums_in_dq ? place.first_row + i : i) * dq.row;
}

class BackwardTask {
 public:
  BackwardTask(const BackwardArgs& args, float* scratch)
      : args_(args),
        shape_(args.shape),
        scale_(static_cast<float>(args.scale)),
        depth_(words(args.shape.head_dim)),
        v_depth_(words(args.shape.v_head_dim)),
        gradients_row_(args.key_tile / kPack + kBackwardGap),
        keys_across_(scratch + args.layout.keys_across),
        values_across_(scratch + args.layout.values_across),
        keys_(scratch + args.layout.keys),
        queries_(scratch + args.layout.queries),
        douts_(scratch + args.layout.douts),
        queries_rows_(scratch + args.layout.queries_rows),
        douts_rows_(scratch + args.layout.douts_rows),
        staged_(scratch + args.layout.staged),
        bias_(scratch + args.layout.bias),
        dmask_(reinterpret_cast<double*>(scratch + args.layout.dmask)),
        dk_(scratch + args.layout.dk),
        dv_(scratch + args.layout.dv),
        probabilities_(scratch + args.layout.probabilities),
        gradients_(scratch + args.layout.gradients),
        products_(scratch + args.layout.products) {}

  void run(std::int64_t task) {
    dk_weights_ = args_.dk_weights == nullptr
                      ? nullptr
                      : args_.dk_weights + task * kMostSegments * shape_.head_dim;
    if (dk_weights_ != nullptr)
      for (std::int64_t d = 0; d < kMostSegments * shape_.head_dim; ++d) dk_weights_[d] = 0;
    // All heads' first tiles come first: tasks of one head are then seldom neighbours.
    const std::int64_t pairs = shape_.batch * shape_.kv_heads;
    enter(task / pairs, task % pairs / shape_.kv_heads, task % pairs % shape_.kv_heads);
    if (owned_.empty()) return;
    const std::int64_t whole_panels = round_up(rows_of(owned_), kPanel);
    clear(dk_, args_.wants_dk ? whole_panels * padded_head_dim() : 0);
    clear(dv_, args_.wants_dv ? whole_panels * padded_v_head_dim() : 0);
    if (!keys_span_.empty()) {
      pack_keys_and_values();
      const std::int64_t group = shape_.q_heads / shape_.kv_heads;
      for (std::int64_t h = kv_head_ * group; h < (kv_head_ + 1) * group; ++h) {
        enter_head(h);
        for (std::int64_t t = 0; t < args_.row_tiles; ++t) {
          const Span rows = row_tile(sequence_, t);
          if (!meet(visible_keys(band_, sequence_, rows), keys_span_).empty()) query_tile(t, rows);
        }
      }
    }
    finish();
  }

  /// dmask of one tile of the mask: of kBackwardRows rows and key_tile keys, or of all where these
  /// are added up.
  void run_dmask(std::int64_t task) {
    const MaskSink& mask = args_.dmask;
    const std::int64_t key_tiles = mask.sizes[3] == 1 ? 1 : args_.key_tiles;
    const std::int64_t row_tiles = mask.sizes[2] == 1 ? 1 : args_.row_tiles;
    const std::int64_t key_tile = task % key_tiles, row_tile = task / key_tiles % row_tiles;
    const std::int64_t head = task / key_tiles / row_tiles % mask.sizes[1];
    const std::int64_t batch = task / key_tiles / row_tiles / mask.sizes[1];
    const Span batches = one_or_all(batch, mask.sizes[0], shape_.batch);
    const Span heads = one_or_all(head, mask.sizes[1], shape_.q_heads);
    const Span row_span = one_or_all(row_tile, mask.sizes[2], args_.row_tiles);
    const Span key_span = one_or_all(key_tile, mask.sizes[3], args_.key_tiles);

    for (std::int64_t n = 0; n < kBackwardRows * args_.key_tile; ++n) dmask_[n] = 0;
    const std::int64_t group = shape_.q_heads / shape_.kv_heads;
    for (std::int64_t b = batches.begin; b < batches.end; ++b)
      for (std::int64_t kt = key_span.begin; kt < key_span.end; ++kt) {
        std::int64_t packed = -1;  // the KV head that is
        for (std::int64_t h = heads.begin; h < heads.end; ++h) {
          enter(kt, b, h / group);
          if (keys_span_.empty()) break;
          if (kv_head_ != packed) pack_keys_and_values();
          packed = kv_head_;
          enter_head(h);
          for (std::int64_t t = row_span.begin; t < row_span.end; ++t) dmask_rows(t);
        }
      }
    store_dmask(batch, head, row_tile * kBackwardRows, key_tile * args_.key_tile);
  }

  static Span row_tile(const Sequence& s, std::int64_t t) {
    return {t * kBackwardRows, lesser((t + 1) * kBackwardRows, s.q_len)};
  }
  /// Keys that some of these rows see.
  static Span visible_keys(const Band& band, const Sequence& s, Span rows) {
    if (rows.empty()) return {0, 0};
    return meet(band.keys_of_some(rows), {0, s.kv_len});
  }

 private:
  /// Rows whose scores are computed at once: with AMX they stay in the L1 cache until they are
  /// words.
  static constexpr std::int64_t kStripRows = kDepth > kPack ? 32 : kBackwardRows;
  /// Rows of a tile of queries, in words.
  static constexpr std::int64_t kRowWords = kBackwardRows / kPack;
  static std::int64_t rows_of(Span span) { return greater(0, span.end - span.begin); }
  static Span one_or_all(std::int64_t n, std::int64_t size, std::int64_t all) {
    return size == 1 ? Span{0, all} : Span{n, n + 1};
  }
  static void clear(float* x, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += kLanes) store(x + i, zero());
  }
  std::int64_t padded_head_dim() const { return round_up(shape_.head_dim, kLanes); }
  std::int64_t padded_v_head_dim() const { return round_up(shape_.v_head_dim, kLanes); }
  bool drops() const { return args_.scores.dropout.threshold > 0; }

  void enter(std::int64_t tile, std::int64_t batch, std::int64_t kv_head) {
    tile_ = tile;
    batch_ = batch;
    kv_head_ = kv_head;
    sequence_ = sequence_of(args_, batch);
    owned_ = {tile * args_.key_tile, lesser((tile + 1) * args_.key_tile, sequence_.kv_capacity)};
    keys_span_ = meet(owned_, {0, sequence_.kv_len});
    keys_place_ = {batch, kv_head, sequence_.k_begin};
    band_ = band_of(args_.band, sequence_);
  }
  void enter_head(std::int64_t head) {
    head_ = head;
    rows_place_ = {batch_, head, sequence_.q_begin};
    scores_ = Scores(args_, sequence_, head);
    if (drops()) keep_ = Keep(args_.scores.dropout, batch_, head, shape_.q_heads);
  }

  void pack_keys_and_values() {
    const std::int64_t n = rows_of(keys_span_), padded = round_up(n, kPanel);
    const Rows k = stage_words(args_.k, keys_place_, keys_span_, staged_);
    pack_across(k, n, depth_, keys_across_, padded);
    if (args_.wants_dq) pack_columns(k, n, shape_.head_dim, keys_, args_.key_tile / kPack);
    pack_across(stage_words(args_.v, keys_place_, keys_span_, staged_), n, v_depth_, values_across_,
                padded);
    keys_are_finite_ = Answer::unknown;
  }

  /// Rows of a tile of queries, as words.
  struct QueryTile {
    Rows q, dout;
  };
  QueryTile load_queries(Span rows) {
    const std::int64_t at = batch_ * args_.lse.batch + head_ * args_.lse.head +
                            (rows_place_.first_row + rows.begin) * args_.lse.row;
    lse_ = {args_.lse.data + at, args_.lse.row, 1};
    dlse_ = {nullptr, args_.dlse.row, 1};
    if (args_.dlse.data != nullptr)
      dlse_.data = args_.dlse.data + batch_ * args_.dlse.batch + head_ * args_.dlse.head +
                   (rows_place_.first_row + rows.begin) * args_.dlse.row;
    delta_ = args_.delta + (batch_ * shape_.q_heads + head_) * shape_.q_len + rows.begin;
    return {stage_words(args_.q, rows_place_, rows, queries_rows_),
            stage_words(args_.dout, rows_place_, rows, douts_rows_)};
  }

  void query_tile(std::int64_t t, Span rows) {
    const std::int64_t n = rows_of(rows);
    const QueryTile tile = load_queries(rows);
    if (args_.wants_dk) pack_right(tile.q, n, shape_.head_dim, queries_, kRowWords);
    if (args_.wants_dv) pack_right(tile.dout, n, shape_.v_head_dim, douts_, kRowWords);
    queries_are_finite_ = douts_are_finite_ = Answer::unknown;

    const std::int64_t panels = (rows_of(keys_span_) + kPanel - 1) / kPanel;
    Prefetch prefetch = fetch_queries(rows.end, panels * (kBackwardRows / kTileRows));
    bool all = true;
    for (std::int64_t p = 0; p < panels; ++p) {
      const Span keys = panel_keys(p);
      const Cover cover = see(rows, keys, seen_[p]);
      all = all && cover == Cover::all;
      if (cover == Cover::none) {
        skip_panel(p, n);
        continue;
      }
      if (cover == Cover::all)
        for (std::int64_t i = 0; i < n; ++i) seen_[p][i] = ~std::uint64_t{0};
      const std::uint64_t* seen = cover == Cover::all ? nullptr : seen_[p];
      const Panel panel = panel_of(p);
      for (std::int64_t i = 0; i < n; i += kStripRows) {
        const Span strip{rows.begin + i, lesser(rows.begin + i + kStripRows, rows.end)};
        // compute S, dP
        products(tile.q.from(i), keys_across_, depth_, strip, keys, seen == nullptr,
                 probabilities_ + i * kScoresRow, kScoresRow, &prefetch);
        if (args_.wants_dq || args_.wants_dk)
          products(tile.dout.from(i), values_across_, v_depth_, strip, keys, seen == nullptr,
                   panel.gradients + i * panel.row, panel.row, nullptr);
        differentiate(rows, strip, keys, seen, panel, true);
        pair(panel, i, rows_of(strip));
      }
      // add to dV, dK
      if (args_.wants_dv)
        add_to_keys(probabilities_, kScoresRow, douts_, shape_.v_head_dim, dv_, rows, keys, seen,
                    douts_are_finite_);
      if (args_.wants_dk)
        add_to_keys(panel.gradients, panel.row, queries_, shape_.head_dim, dk_, rows, keys, seen,
                    queries_are_finite_);
    }
    if (args_.wants_dq) add_to_queries(t, rows, all);
  }

  /// Where dP of a panel is computed and becomes dS: f32 [rows, kPanel].
  struct Panel {
    float* gradients;
    std::int64_t row;
    float* words;  ///< where dS stands for dQ [rows, gradients_row_]
  };
  Panel panel_of(std::int64_t p) const {
    float* words = gradients_ + p * kPanel / kPack;
    if constexpr (kPack > 1) return {products_, kScoresRow, words};
    return {words, gradients_row_, words};
  }
  // P and dS of some rows -> words: down the columns for dV and dK, along the rows for dQ.
  void pair([[maybe_unused]] const Panel& panel, [[maybe_unused]] std::int64_t first,
            [[maybe_unused]] std::int64_t rows) const {
#if defined(__AVX512BF16__)
    const float* p = probabilities_ + first * kScoresRow;
    pair_rows(p, rows, kScoresRow, probabilities_ + first / kPack * kScoresRow);
    const float* ds = panel.gradients + first * panel.row;
    pair_columns(ds, rows, panel.row, panel.words + first * gradients_row_, gradients_row_);
    pair_rows(ds, rows, panel.row, panel.gradients + first / kPack * panel.row);
#endif
  }
  /// Nothing of a panel is visible, but dQ goes over all keys that the band shows.
  void skip_panel(std::int64_t p, std::int64_t rows) {
    for (std::int64_t i = 0; i < rows; ++i) {
      clear(panel_of(p).words + i * gradients_row_, kPanel / kPack);
      seen_[p][i] = 0;
    }
  }

  Span panel_keys(std::int64_t p) const {
    const std::int64_t begin = keys_span_.begin + p * kPanel;
    return {begin, lesser(begin + kPanel, keys_span_.end)};
  }
  Cover see(Span rows, Span keys, std::uint64_t* seen) const {
    if (meet(band_.keys_of_some(rows), keys).empty()) return Cover::none;
    return scores_.see_along(rows, keys, bias_, seen);
  }
  Prefetch fetch_queries(std::int64_t row, std::int64_t steps) const {
    if (!args_.q.in_place || !args_.dout.in_place) return {};
    const std::int64_t n = greater(0, lesser(kBackwardRows, sequence_.q_len - row));
    return {rows_in_place(args_.q, rows_place_, row),
            shape_.head_dim,
            rows_in_place(args_.dout, rows_place_, row),
            shape_.v_head_dim,
            n,
            steps};
  }

  // X Y^T of a tile of rows and a panel of keys, where some are visible.
  void products(Rows x, const float* across, std::int64_t depth, Span rows, Span keys, bool all,
                float* to, std::int64_t to_row, Prefetch* prefetch) {
    const auto narrow = [&](std::int64_t i, std::int64_t height) {
      if (all) return Span{0, kPanel};
      const std::int64_t row = rows.begin + i;
      const Span seen = meet(band_.keys_of_some({row, row + height}), keys);
      return Span{seen.begin - keys.begin, seen.end - keys.begin};
    };
    dot_panel(x, rows_of(rows), across + (keys.begin - keys_span_.begin) * depth, depth, to, to_row,
              rows_of(keys), narrow, [&] {
                if (prefetch != nullptr) prefetch->step();
              });
  }

  /// From S and dP to P o drop and dS (o softcap', if `capped`), in place: the stage that knows
  /// what is visible. The scaled score is rounded before lse is taken off, as it was for lse: where
  /// one key has all the weight, P is 1.
  void differentiate(Span tile, Span rows, Span keys, const std::uint64_t* seen, const Panel& panel,
                     bool capped) {
    const bool bent = scores_.bent(), drop = drops();
    const std::uint64_t every = first_bits(keys.end - keys.begin);
    std::uint64_t kept[kBackwardRows];
    if (drop) keep_.along(rows.begin, rows_of(rows), keys.begin, kept);
    alignas(64) float cap_slopes[kPanel];
    const bool inexact = drop || kPack > 1;  // delta and dP are not the same sums
    const bool bends_back = capped && scores_.capped();
    const Vec to_base2 = splat(static_cast<float>(kLog2e));
    const Vec scale = splat(bent ? 1 : scale_);
    const Vec keep_scale = splat(args_.scores.dropout.keep_scale);
    for (std::int64_t i = rows.begin; i < rows.end; ++i) {
      const std::int64_t at = i - tile.begin;
      float* s = probabilities_ + at * kScoresRow;
      float* g = panel.gradients + at * panel.row;
      const float lse = *lse_.at(at);
      if (bent)
        scores_.bend_along(i, keys.begin, bias_ + at * kPanel, s, cap_slopes);
      else if (lse < -kFarOut)
        raise(s);
      const std::uint64_t sees = lse == -kInfinity ? 0 : seen == nullptr ? every : seen[at];
      const Vec log_sum = splat(lse), delta = splat(delta_[at]);
      const float dlse = dlse_.data == nullptr ? 0 : *dlse_.at(at);
      if (sees == ~std::uint64_t{0} && !drop && !bends_back) {
        constexpr int kAbreast = 4;
        bool alone = false;  // a key with P = 1, which is seen to below
        for (int x = 0; x < kPanel && !alone; x += kAbreast * kLanes) {
          Vec p[kAbreast];
#pragma GCC unroll 4
          for (int u = 0; u < kAbreast; ++u) {
            p[u] = exp2((load(s + x + u * kLanes) * scale - log_sum) * to_base2);
            if (kPack > 1) alone |= any(equal(p[u], splat(1)));
          }
          if (alone) break;
#pragma GCC unroll 4
          for (int u = 0; u < kAbreast; ++u) {
            float* ds = g + x + u * kLanes;
            store(s + x + u * kLanes, p[u]);
            store(ds, p[u] * (load(ds) - delta));
          }
        }
        if (!alone) continue;
      }
      for (int x = 0; x < kPanel; x += kLanes) {
        const Mask shown = lanes_of(sees >> x);
        const Vec p = exp2((load(s + x) * scale - log_sum) * to_base2);
        Vec weight = p, dp = load(g + x);
        if (drop) {
          const Mask stays = lanes_of(kept[i - rows.begin] >> x);
          weight = select(stays, p, zero());
          dp = select(stays, dp * keep_scale, zero());
        }
        Vec d = p * (dp - delta);
        // delta is drop o dP of the only key, but for rounding.
        if (inexact) {
          const Mask alone = both(equal(p, splat(1)), less(absolute(dp - delta), splat(kInfinity)));
          d = select(alone, splat(dlse), d);
        }
        if (bends_back) d = d * load(cap_slopes + x);
        store(s + x, select(shown, weight, zero()));
        store(g + x, select(shown, d, zero()));
      }
    }
  }

  /// Finite scores, raised to the least that forward tells apart.
  void raise(float* s) {
    for (int x = 0; x < kPanel; ++x) {
      const float score = s[x] * scale_;
      if (score < kLeastScore && score != -kInfinity && scale_ != 0) s[x] = kLeastScore / scale_;
    }
  }

  // dX[keys] += Y^T Z[rows], Y being P or dS and Z being dO or Q.
  void add_to_keys(const float* y, std::int64_t y_row, const float* z, std::int64_t width,
                   float* dx, Span rows, Span keys, const std::uint64_t* seen,
                   Answer& z_is_finite) {
    DownProduct product{};
    product.y = y;
    product.y_row = y_row;
    product.depth = rows_of(rows);
    product.columns = rows_of(keys);
    product.z = z;
    product.z_capacity = kRowWords;
    product.padded = round_up(width, kLanes);
    product.x = dx + (keys.begin - keys_span_.begin) * product.padded;
    if (seen != nullptr &&
        !known(z_is_finite, [&] { return right_is_finite(z, width, kRowWords, rows_of(rows)); }))
      return add_down_visible(product, seen);
    const auto narrow = [&](std::int64_t j, std::int64_t height) {
      if (seen == nullptr) return Span{0, product.depth};
      const std::int64_t key = keys.begin + j;
      Span some = meet(band_.rows_of_some({key, key + height}), rows);
      if (!some.empty()) some = whole_steps(some, rows);
      return Span{some.begin - rows.begin, some.end - rows.begin};
    };
    add_down(product, narrow, [] {});
  }

  // dQ[rows] += scale dS K, in turn.
  void add_to_queries(std::int64_t tile, Span rows, bool all) {
    const Span visible = visible_keys(band_, sequence_, rows);
    const auto turn = static_cast<std::uint32_t>(tile_ - visible.begin / args_.key_tile);
    std::uint32_t* turns = args_.turns + (batch_ * shape_.q_heads + head_) * args_.row_tiles + tile;
    await(turns, turn);

    const bool by_element = !all && !known(keys_are_finite_, [&] {
      return columns_are_finite(keys_, shape_.head_dim, args_.key_tile / kPack,
                                rows_of(keys_span_));
    });
    const std::int64_t dq_step = args_.dq_sums.row;
    const bool first = turn == 0;
    for (std::int64_t d = 0; d < shape_.head_dim; d += kTileCols) {
      const std::int64_t width = lesser(kTileCols, shape_.head_dim - d);
      const int vecs = static_cast<int>((width + kLanes - 1) / kLanes);
      TileArgs t{};
      t.a_row = gradients_row_;
      t.a_step = 1;
      t.b_row = kTileCols;
      t.factor = scale_;
      for (std::int64_t i = rows.begin; i < rows.end; i += kBlockRows) {
        const std::int64_t height = lesser(kBlockRows, rows.end - i);
        Span seen = keys_span_;
        if (!all) seen = meet(band_.keys_of_some({i, i + height}), keys_span_);
        float* to = dq_row(args_, rows_place_, i) + d;
        if (seen.empty()) {
          if (first) clear_rows(to, dq_step, height, width);
          continue;
        }
        seen = whole_steps(seen, keys_span_);
        const std::int64_t first_key = seen.begin - keys_span_.begin;
        t.a = gradients_ + (i - rows.begin) * gradients_row_ + first_key / kPack;
        t.b = keys_ + (d * args_.key_tile + first_key * kTileCols) / kPack;
        t.depth = words(seen.end - seen.begin);
        if (width == vecs * kLanes && !by_element) {
          t.c = to;
          t.c_row = dq_step;
          (first ? multiply_tile<Into::kFactorStore>
                 : multiply_tile<Into::kFactorAdd>)(static_cast<int>(height), vecs, t);
          continue;
        }
        alignas(64) float sums[kBlockRows * kTileCols] = {};
        t.c = sums;
        t.c_row = kTileCols;
        if (by_element) {
          t.depth = seen.end - seen.begin;
          const std::int64_t row = i - rows.begin;
          add_visible(t, height, vecs, [&](std::int64_t r, std::int64_t k) {
            const std::int64_t j = first_key + k;
            return (seen_[j / kPanel][row + r] >> (j % kPanel) & 1) != 0;
          });
        } else {
          multiply_tile<Into::kFactorStore>(static_cast<int>(height), vecs, t);
        }
        for (std::int64_t r = 0; r < height; ++r)
          for (std::int64_t c = 0; c < width; ++c) {
            float& x = to[r * dq_step + c];
            x = first ? sums[r * kTileCols + c] : x + sums[r * kTileCols + c];
          }
      }
    }
    __atomic_store_n(turns, turn + 1, __ATOMIC_RELEASE);
  }

  static void await(const std::uint32_t* turns, std::uint32_t turn) {
    for (int spins = 0; __atomic_load_n(turns, __ATOMIC_ACQUIRE) != turn; ++spins) {
#if defined(__SSE__)
      _mm_pause();
#endif
      if (spins > 64) sched_yield();
    }
  }

  static void clear_rows(float* to, std::int64_t row, std::int64_t height, std::int64_t width) {
    for (std::int64_t r = 0; r < height; ++r)
      for (std::int64_t c = 0; c < width; ++c) to[r * row + c] = 0;
  }

  // Store dK, dV.
  void finish() {
    const RowsOfSums dks(dk_, padded_head_dim(), queries_), dvs(dv_, padded_v_head_dim(), douts_);
    for (std::int64_t j = owned_.begin; j < owned_.end; ++j) {
      const std::int64_t at = j - owned_.begin;
      if (args_.wants_dk) {
        float* dk = dks.at(at);
        multiply(dk, padded_head_dim(), scale_);
        write_gradient(args_.k, args_.dk, keys_place_, j, dk, dk_weights_);
      }
      if (args_.wants_dv) {
        float* dv = dvs.at(at);
        if (drops()) multiply(dv, padded_v_head_dim(), args_.scores.dropout.keep_scale);
        write_row(args_.dv, keys_place_, j, dv);
      }
    }
  }
  static void multiply(float* x, std::int64_t n, float factor) {
    for (std::int64_t d = 0; d < n; d += kLanes) store(x + d, load(x + d) * splat(factor));
  }

  // Adds dS of one tile of rows to dmask_, whose rows or keys are one where they are added up.
  void dmask_rows(std::int64_t t) {
    const Span rows = row_tile(sequence_, t);
    if (meet(visible_keys(band_, sequence_, rows), keys_span_).empty()) return;
    const QueryTile tile = load_queries(rows);
    std::uint64_t seen[kBackwardRows];
    const bool one_row = args_.dmask.sizes[2] == 1, one_key = args_.dmask.sizes[3] == 1;
    for (std::int64_t p = 0; p * kPanel < rows_of(keys_span_); ++p) {
      const Span keys = panel_keys(p);
      const Cover cover = see(rows, keys, seen);
      if (cover == Cover::none) continue;
      const bool all = cover == Cover::all;
      const Panel panel = panel_of(0);
      products(tile.q, keys_across_, depth_, rows, keys, all, probabilities_, kScoresRow, nullptr);
      products(tile.dout, values_across_, v_depth_, rows, keys, all, panel.gradients, panel.row,
               nullptr);
      differentiate(rows, rows, keys, all ? nullptr : seen, panel, false);
      for (std::int64_t i = 0; i < rows_of(rows); ++i)
        for (std::int64_t j = 0; j < rows_of(keys); ++j)
          dmask_[(one_row ? 0 : i) * args_.key_tile + (one_key ? 0 : p * kPanel + j)] +=
              static_cast<double>(panel.gradients[i * panel.row + j]);
    }
  }

  void store_dmask(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t key) {
    const MaskSink& mask = args_.dmask;
    const std::int64_t rows = mask.sizes[2] == 1 ? 1 : lesser(kBackwardRows, mask.sizes[2] - row);
    const std::int64_t keys = mask.sizes[3] == 1 ? 1 : lesser(args_.key_tile, mask.sizes[3] - key);
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t at = batch * mask.strides[0] + head * mask.strides[1] +
                              (mask.sizes[2] == 1 ? 0 : row + i) * mask.strides[2] +
                              (mask.sizes[3] == 1 ? 0 : key) * mask.strides[3];
      float row_of_sums[kBackwardMaxKeys];
      for (std::int64_t j = 0; j < keys; ++j)
        row_of_sums[j] = static_cast<float>(dmask_[i * args_.key_tile + j]);
      narrow_row(row_of_sums, keys, mask.element,
                 static_cast<char*>(mask.data) + at * size_of(mask.element), mask.strides[3]);
    }
  }

  const BackwardArgs& args_;
  const Shape& shape_;
  const float scale_;
  const std::int64_t depth_, v_depth_;  ///< head_dim, v_head_dim in words
  const std::int64_t gradients_row_;  ///< keeps the rows of dS out of the same sets of the L1 cache
  float *const keys_across_, *const values_across_, *const keys_;
  float *const queries_, *const douts_, *const queries_rows_, *const douts_rows_;
  float *const staged_, *const bias_;
  double* const dmask_;  ///< [rows, key tile]
  float *const dk_, *const dv_, *const probabilities_, *const gradients_, *const products_;

  // The task.
  float* dk_weights_ = nullptr;  ///< [segments, head_dim]
  std::int64_t batch_ = 0, kv_head_ = 0, tile_ = 0;
  Sequence sequence_{};
  Band band_{INT64_MAX, INT64_MAX};
  Span owned_{0, 0}, keys_span_{0, 0};  ///< keys of the task, and those of them that count
  Place keys_place_{};
  Answer keys_are_finite_ = Answer::unknown;
  // The head.
  std::int64_t head_ = 0;
  Place rows_place_{};
  Scores scores_;
  Keep keep_;
  // The tile of queries.
  Rows lse_{}, dlse_{};
  const float* delta_ = nullptr;
  std::uint64_t seen_[kBackwardMaxKeys / kPanel][kBackwardRows];  ///< by panel: what see_along says
  Answer queries_are_finite_ = Answer::unknown, douts_are_finite_ = Answer::unknown;
};

/// One tile of rows of one head.
struct RowTask {
  std::int64_t head;
  Sequence sequence;
  Place place;
  Span rows;
};
RowTask row_task(const BackwardArgs& args, std::int64_t task) {
  const std::int64_t pair = task / args.row_tiles, heads = args.shape.q_heads;
  const Sequence s = sequence_of(args, pair / heads);
  return {pair % heads,
          s,
          {pair / heads, pair % heads, s.q_begin},
          BackwardTask::row_tile(s, task % args.row_tiles)};
}
std::int64_t row_tasks(const BackwardArgs& args) {
  return args.shape.batch * args.shape.q_heads * args.row_tiles;
}

/// delta, turns and dsink's share of one tile of rows; dQ of rows that see nothing.
void prepare(const BackwardArgs& args, std::int64_t task, float* scratch) {
  const RowTask t = row_task(args, task);
  const Shape& shape = args.shape;
  const float sink = float_at(args.scores.sinks, t.head, -kInfinity);
  double dsink = 0;
  float* deltas = args.delta + (t.place.batch * shape.q_heads + t.head) * shape.q_len;
  const auto at = [&](const Input& x, std::int64_t row) {
    return x.data[t.place.batch * x.batch + t.head * x.head + (t.place.first_row + row) * x.row];
  };
  constexpr int kAbreast = 4;  // independent sums, as each waits for itself
  for (std::int64_t i = t.rows.begin; i < t.rows.end; i += kAbreast) {
    const Span rows = {i, lesser(i + kAbreast, t.rows.end)};
    const Rows out = stage(args.out, t.place, rows, scratch + args.layout.douts);
    const Rows dout = stage(args.dout, t.place, rows, scratch + args.layout.douts_rows);
    const float *x[kAbreast], *y[kAbreast];
    float delta[kAbreast];
    for (int r = 0; r < kAbreast; ++r) {
      x[r] = out.at(lesser(r, rows.end - i - 1));
      y[r] = dout.at(lesser(r, rows.end - i - 1));
    }
    dots_as_tile<kAbreast>(x, out.column, y, dout.column, shape.v_head_dim, delta);
    for (std::int64_t row = i; row < rows.end; ++row) {
      float& d = delta[row - i];
      if (args.dlse.data != nullptr) d -= at(args.dlse, row);
      deltas[row] = d;
      if (sink != -kInfinity)
        dsink -= __builtin_exp(static_cast<double>(sink) - static_cast<double>(at(args.lse, row))) *
                 static_cast<double>(d);
    }
  }
  args.turns[task] = 0;
  if (args.dsinks != nullptr) args.dsinks[task] = dsink;
  const Band band = band_of(args.band, t.sequence);
  if (!args.wants_dq || !BackwardTask::visible_keys(band, t.sequence, t.rows).empty()) return;
  for (std::int64_t i = t.rows.begin; i < t.rows.end; ++i) {
    float* to = dq_row(args, t.place, i);
    for (std::int64_t d = 0; d < shape.head_dim; ++d) to[d] = 0;
  }
}

/// dq from its sums.
void store_dq(const BackwardArgs& args, std::int64_t task) {
  const RowTask t = row_task(args, task);
  float* dweights = nullptr;
  if (args.dq_weights != nullptr) {
    const std::int64_t width = kMostSegments * args.shape.head_dim;
    dweights = args.dq_weights + task * width;
    for (std::int64_t d = 0; d < width; ++d) dweights[d] = 0;
  }
  for (std::int64_t i = t.rows.begin; i < t.rows.end; ++i)
    write_gradient(args.q, args.dq, t.place, i, dq_row(args, t.place, i), dweights);
}

/// Calls work(task) for every task that this worker gets hold of.
template <class Work>
void for_each_task(BackwardArgs& args, std::int64_t tasks, Work work) {
  const FlushSubnormals flush;
  for (;;) {
    const std::int64_t n = __atomic_fetch_add(&args.next_task, 1, __ATOMIC_RELAXED);
    if (n >= tasks) return;
    work(n);
  }
}

}  // namespace

void FOVEA_ISA_NAME(flash_backward_prepare)(void* opaque, int worker) {
  auto& args = *static_cast<BackwardArgs*>(opaque);
  float* scratch = args.scratch + worker * args.layout.floats;
  for_each_task(args, row_tasks(args), [&](std::int64_t task) { prepare(args, task, scratch); });
}

void FOVEA_ISA_NAME(flash_backward)(void* opaque, int worker) {
  auto& args = *static_cast<BackwardArgs*>(opaque);
  [[maybe_unused]] const MatrixUnit unit;
  BackwardTask task(args, args.scratch + worker * args.layout.floats);
  for_each_task(args, args.shape.batch * args.shape.kv_heads * args.key_tiles,
                [&](std::int64_t n) { task.run(n); });
}

void FOVEA_ISA_NAME(flash_backward_store_dq)(void* opaque, int) {
  auto& args = *static_cast<BackwardArgs*>(opaque);
  for_each_task(args, row_tasks(args), [&](std::int64_t task) { store_dq(args, task); });
}

void FOVEA_ISA_NAME(flash_backward_dmask)(void* opaque, int worker) {
  auto& args = *static_cast<BackwardArgs*>(opaque);
  [[maybe_unused]] const MatrixUnit unit;
  BackwardTask task(args, args.scratch + worker * args.layout.floats);
  const std::int64_t* sizes = args.dmask.sizes;
  const std::int64_t tasks = sizes[0] * sizes[1] * (sizes[2] == 1 ? 1 : args.row_tiles) *
                             (sizes[3] == 1 ? 1 : args.key_tiles);
  for_each_task(args, tasks, [&](std::int64_t n) { task.run_dmask(n); });
}

}  // namespace fovea::cpu
