// cpu.{avx512,avx2,portable}.backward: gradients of attention without a matrix of scores, in f32.
//
//   P = exp(scale Q K^T - lse) where visible, else 0      delta = rowsum(dO o O) - dlse
//   dS = P o (dO V^T - delta)
//   dV = P^T dO,  dK = scale dS^T Q,  dQ = scale dS K
//
//   q, dq [batch, q_heads, q_len, head_dim]; k, dk [batch, kv_heads, kv_len, head_dim];
//   v, dv [batch, kv_heads, kv_len, v_head_dim]; out, dout [batch, q_heads, q_len, v_head_dim];
//   lse, dlse [batch, q_heads, q_len]; any strides
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
// A pair of tiles is skipped, or computed without a mask, or masked, as in forward.
//
// Scratch a worker: below 5 MB at the largest head dims, 0.9 MB at 128 (flash_kernels.cpp).
//
// Serves: f32, head_dim and v_head_dim 1 to 512, any strides, grouped heads, bands, dlse.
#include <sched.h>

#include "cpu/flash_args.h"
#include "cpu/tile_pack.h"

namespace fovea::cpu {
namespace {

/// An lse below this belongs to scores that were raised to the least that forward tells apart.
constexpr float kFarOut = 1e37f;
constexpr float kLeastScore = static_cast<float>(-static_cast<double>(kFloatMax) / kLog2e);

enum class Answer { unknown, yes, no };

class BackwardTask {
 public:
  BackwardTask(const BackwardArgs& args, float* scratch)
      : args_(args),
        shape_(args.shape),
        band_{args.band.below, args.band.above},
        scale_(static_cast<float>(args.scale)),
        gradients_row_(args.key_tile + kGap),
        wants_dq_(args.dq.data != nullptr),
        wants_dk_(args.dk.data != nullptr),
        wants_dv_(args.dv.data != nullptr),
        keys_across_(scratch + args.layout.keys_across),
        values_across_(scratch + args.layout.values_across),
        keys_(scratch + args.layout.keys),
        queries_(scratch + args.layout.queries),
        douts_(scratch + args.layout.douts),
        queries_rows_(scratch + args.layout.queries_rows),
        douts_rows_(scratch + args.layout.douts_rows),
        dk_(scratch + args.layout.dk),
        dv_(scratch + args.layout.dv),
        probabilities_(scratch + args.layout.probabilities),
        gradients_(scratch + args.layout.gradients) {}

  void run(std::int64_t task) {
    // All heads' first tiles come first: tasks of one head are then seldom neighbours.
    const std::int64_t pairs = shape_.batch * shape_.kv_heads;
    tile_ = task / pairs;
    batch_ = task % pairs / shape_.kv_heads;
    kv_head_ = task % pairs % shape_.kv_heads;
    keys_span_ = {tile_ * args_.key_tile, lesser((tile_ + 1) * args_.key_tile, shape_.kv_len)};
    begin();
    const std::int64_t group = shape_.q_heads / shape_.kv_heads;
    for (head_ = kv_head_ * group; head_ < (kv_head_ + 1) * group; ++head_) {
      const Rows q = cpu::rows_of(args_.q, batch_, head_);
      const Rows dout = cpu::rows_of(args_.dout, batch_, head_);
      for (std::int64_t t = 0; t < args_.row_tiles; ++t) {
        const Span rows = row_tile(args_, t);
        if (!meet(visible_keys(args_, rows), keys_span_).empty()) query_tile(t, rows, q, dout);
      }
    }
    finish();
  }

  static Span row_tile(const BackwardArgs& args, std::int64_t t) {
    return {t * kBackwardRows, lesser((t + 1) * kBackwardRows, args.shape.q_len)};
  }
  /// Keys that some of these rows see.
  static Span visible_keys(const BackwardArgs& args, Span rows) {
    const Band band{args.band.below, args.band.above};
    return meet(band.keys_of_some(rows), {0, args.shape.kv_len});
  }

 private:
  /// Keeps the rows of dS from falling into the same sets of the L1 cache.
  static constexpr std::int64_t kGap = kBackwardGap;

  std::int64_t tile_keys() const { return keys_span_.end - keys_span_.begin; }

  // Pack K and V, clear dK and dV.
  void begin() {
    const std::int64_t n = tile_keys(), padded = round_up(n, kPanel);
    const Rows k = cpu::rows_of(args_.k, batch_, kv_head_).from(keys_span_.begin);
    const Rows v = cpu::rows_of(args_.v, batch_, kv_head_).from(keys_span_.begin);
    pack_across(k, n, shape_.head_dim, keys_across_, padded);
    if (wants_dq_ || wants_dk_) pack_across(v, n, shape_.v_head_dim, values_across_, padded);
    if (wants_dq_) pack_columns(k, n, shape_.head_dim, keys_, args_.key_tile);
    keys_are_finite_ = Answer::unknown;
    clear(dk_, wants_dk_ ? n * padded_head_dim() : 0);
    clear(dv_, wants_dv_ ? n * padded_v_head_dim() : 0);
  }
  static void clear(float* x, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += kLanes) store(x + i, zero());
  }
  std::int64_t padded_head_dim() const { return round_up(shape_.head_dim, kLanes); }
  std::int64_t padded_v_head_dim() const { return round_up(shape_.v_head_dim, kLanes); }

  void query_tile(std::int64_t t, Span rows, Rows q, Rows dout) {
    const std::int64_t n = rows.end - rows.begin;
    const std::int64_t lse_at =
        batch_ * args_.lse.batch + head_ * args_.lse.head + rows.begin * args_.lse.row;
    lse_ = {args_.lse.data + lse_at, args_.lse.row, 1};
    delta_ = args_.delta + (batch_ * shape_.q_heads + head_) * shape_.q_len + rows.begin;

    // load Q, dO
    const Rows q_tile = q.from(rows.begin), dout_tile = dout.from(rows.begin);
    if (wants_dk_) pack_columns(q_tile, n, shape_.head_dim, queries_, kBackwardRows);
    if (wants_dv_) pack_columns(dout_tile, n, shape_.v_head_dim, douts_, kBackwardRows);
    queries_are_finite_ = douts_are_finite_ = Answer::unknown;
    const Rows q_rows = pack_rows(q_tile, n, shape_.head_dim, queries_rows_);
    const Rows dout_rows = pack_rows(dout_tile, n, shape_.v_head_dim, douts_rows_);

    const std::int64_t after = greater(0, lesser(kBackwardRows, shape_.q_len - rows.end));
    const std::int64_t panels = (tile_keys() + kPanel - 1) / kPanel;
    Prefetch prefetch(q.from(rows.end), shape_.head_dim, dout.from(rows.end), shape_.v_head_dim,
                      after, panels * (kBackwardRows / kTileRows));
    bool all = true;
    for (std::int64_t p = 0; p < panels; ++p) {
      const std::int64_t begin = keys_span_.begin + p * kPanel;
      const Span keys = {begin, lesser(begin + kPanel, keys_span_.end)};
      if (meet(band_.keys_of_some(rows), keys).empty()) {
        all = false;
        continue;
      }
      const bool panel_all = covers(band_.keys_of_every(rows), keys);
      all = all && panel_all;
      // compute S, dP
      products(q_rows, keys_across_, shape_.head_dim, rows, keys, panel_all, probabilities_,
               kScoresRow, &prefetch);
      if (wants_dq_ || wants_dk_)
        products(dout_rows, values_across_, shape_.v_head_dim, rows, keys, panel_all,
                 gradients_ + p * kPanel, gradients_row_, nullptr);
      differentiate(rows, keys, panel_all, gradients_ + p * kPanel);
      // add to dV, dK
      if (wants_dv_)
        add_to_keys(
            probabilities_, kScoresRow, douts_, shape_.v_head_dim, dv_, padded_v_head_dim(), rows,
            keys,
            panel_all || finite(douts_are_finite_, douts_, shape_.v_head_dim, kBackwardRows, n),
            panel_all);
      if (wants_dk_)
        add_to_keys(
            gradients_ + p * kPanel, gradients_row_, queries_, shape_.head_dim, dk_,
            padded_head_dim(), rows, keys,
            panel_all || finite(queries_are_finite_, queries_, shape_.head_dim, kBackwardRows, n),
            panel_all);
    }
    if (wants_dq_) add_to_queries(t, rows, all);
  }

  static bool finite(Answer& answer, const float* packed, std::int64_t width, std::int64_t capacity,
                     std::int64_t rows) {
    if (answer == Answer::unknown)
      answer = columns_are_finite(packed, width, capacity, {0, rows}) ? Answer::yes : Answer::no;
    return answer == Answer::yes;
  }

  // X Y^T of a tile of rows and a panel of keys, where some are visible.
  void products(Rows x, const float* across, std::int64_t depth, Span rows, Span keys, bool all,
                float* to, std::int64_t to_row, Prefetch* prefetch) {
    const std::int64_t first = keys.begin - keys_span_.begin;
    for (std::int64_t c = 0; c < keys.end - keys.begin; c += kTileCols) {
      const float* y = across + (first + c) * depth;
      for (std::int64_t i = rows.begin; i < rows.end; i += kTileRows) {
        const std::int64_t height = lesser(kTileRows, rows.end - i);
        if (prefetch != nullptr) prefetch->step();
        Span lanes{0, kTileCols};
        if (!all) {
          const Span seen = meet(band_.keys_of_some({i, i + height}), keys);
          lanes = meet({seen.begin - keys.begin - c, seen.end - keys.begin - c}, lanes);
          if (lanes.empty()) continue;
          lanes = {lanes.begin / kLanes * kLanes, round_up(lanes.end, kLanes)};
        }
        TileArgs t{};
        t.a = x.at(i - rows.begin);
        t.a_row = x.row;
        t.a_step = 1;
        t.b = y + lanes.begin;
        t.b_row = kTileCols;
        t.c = to + (i - rows.begin) * to_row + c + lanes.begin;
        t.c_row = to_row;
        t.depth = depth;
        dot_tile(static_cast<int>(height), static_cast<int>((lanes.end - lanes.begin) / kLanes), t);
      }
    }
  }

  /// From S and dP to P and dS, in place: the stage that knows what is visible. The scaled score is
  /// rounded before lse is taken off, as it was for lse: where one key has all the weight, P is 1.
  void differentiate(Span rows, Span keys, bool all, float* gradients) {
    alignas(64) float positions[kPanel];
    for (int x = 0; x < kPanel; ++x) positions[x] = static_cast<float>(x);
    for (std::int64_t i = rows.begin; i < rows.end; ++i) {
      const std::int64_t at = i - rows.begin;
      float* s = probabilities_ + at * kScoresRow;
      float* g = gradients + at * gradients_row_;
      const float lse = *lse_.at(at);
      Span seen = keys;
      if (!all) seen = meet(band_.keys_of(i), keys);
      if (lse == -kInfinity) seen.end = seen.begin;
      const bool whole = seen.begin == keys.begin && seen.end == keys.begin + kPanel;
      if (lse < -kFarOut) raise(s);
      const Vec scale = splat(scale_), to_base2 = splat(static_cast<float>(kLog2e));
      const Vec log_sum = splat(lse), delta = splat(delta_[at]);
      if (whole) {
#pragma GCC unroll 4
        for (int x = 0; x < kPanel; x += kLanes) {
          const Vec p = exp2((load(s + x) * scale - log_sum) * to_base2);
          store(s + x, p);
          store(g + x, p * (load(g + x) - delta));
        }
        continue;
      }
      const Vec begin = splat(static_cast<float>(seen.begin - keys.begin));
      const Vec end = splat(static_cast<float>(greater(seen.end, seen.begin) - keys.begin));
      for (int x = 0; x < kPanel; x += kLanes) {
        const Vec position = load(positions + x);
        const Mask before = less(position, begin), within = less(position, end);
        Vec p = exp2((load(s + x) * scale - log_sum) * to_base2);
        p = select(before, zero(), select(within, p, zero()));
        const Vec d = p * (load(g + x) - delta);
        store(s + x, p);
        store(g + x, select(before, zero(), select(within, d, zero())));
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
                   float* dx, std::int64_t dx_row, Span rows, Span keys, bool z_is_finite,
                   bool all) {
    // A weight of 0 does not silence a row that is not finite: then go key by key.
    const std::int64_t step = z_is_finite ? kTileRows : 1;
    const std::int64_t padded = round_up(width, kLanes);
    for (std::int64_t d = 0; d < padded; d += kTileCols) {
      const int vecs = static_cast<int>(lesser(kTileCols, padded - d) / kLanes);
      for (std::int64_t j = keys.begin; j < keys.end; j += step) {
        const std::int64_t height = lesser(step, keys.end - j);
        Span seeing = rows;
        if (!all) seeing = meet(band_.rows_of_some({j, j + height}), rows);
        if (seeing.empty()) continue;
        TileArgs t{};
        t.a = y + (seeing.begin - rows.begin) * y_row + (j - keys.begin);
        t.a_row = 1;
        t.a_step = y_row;
        t.b = z + d * kBackwardRows + (seeing.begin - rows.begin) * kTileCols;
        t.b_row = kTileCols;
        t.c = dx + (j - keys_span_.begin) * dx_row + d;
        t.c_row = dx_row;
        t.depth = seeing.end - seeing.begin;
        tile_function<Into::kAdd>(static_cast<int>(height), vecs)(t);
      }
    }
  }

  // dQ[rows] += scale dS K, in turn.
  void add_to_queries(std::int64_t tile, Span rows, bool all) {
    const Span visible = visible_keys(args_, rows);
    const auto turn = static_cast<std::uint32_t>(tile_ - visible.begin / args_.key_tile);
    std::uint32_t* turns = args_.turns + (batch_ * shape_.q_heads + head_) * args_.row_tiles + tile;
    await(turns, turn);

    const std::int64_t step =
        all || finite(keys_are_finite_, keys_, shape_.head_dim, args_.key_tile, tile_keys())
            ? kTileRows
            : 1;
    const Output& dq = args_.dq_sums;
    const bool first = turn == 0;
    for (std::int64_t d = 0; d < shape_.head_dim; d += kTileCols) {
      const std::int64_t width = lesser(kTileCols, shape_.head_dim - d);
      const int vecs = static_cast<int>((width + kLanes - 1) / kLanes);
      for (std::int64_t i = rows.begin; i < rows.end; i += step) {
        const std::int64_t height = lesser(step, rows.end - i);
        Span seen = keys_span_;
        if (!all) seen = meet(band_.keys_of_some({i, i + height}), keys_span_);
        float* to = dq.data + batch_ * dq.batch + head_ * dq.head + i * dq.row + d;
        if (seen.empty()) {
          if (first) clear_rows(to, dq.row, height, width);
          continue;
        }
        TileArgs t{};
        t.a = gradients_ + (i - rows.begin) * gradients_row_ + (seen.begin - keys_span_.begin);
        t.a_row = gradients_row_;
        t.a_step = 1;
        t.b = keys_ + d * args_.key_tile + (seen.begin - keys_span_.begin) * kTileCols;
        t.b_row = kTileCols;
        t.depth = seen.end - seen.begin;
        t.factor = scale_;
        if (width == vecs * kLanes) {
          t.c = to;
          t.c_row = dq.row;
          (first ? tile_function<Into::kFactorStore>(static_cast<int>(height), vecs)
                 : tile_function<Into::kFactorAdd>(static_cast<int>(height), vecs))(t);
        } else {
          alignas(64) float sums[kTileRows * kTileCols];
          t.c = sums;
          t.c_row = kTileCols;
          tile_function<Into::kFactorStore>(static_cast<int>(height), vecs)(t);
          for (std::int64_t r = 0; r < height; ++r)
            for (std::int64_t c = 0; c < width; ++c) {
              float& x = to[r * dq.row + c];
              x = first ? sums[r * kTileCols + c] : x + sums[r * kTileCols + c];
            }
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
    if (wants_dk_) store_keys(args_.dk, dk_, shape_.head_dim, padded_head_dim(), scale_);
    if (wants_dv_) store_keys(args_.dv, dv_, shape_.v_head_dim, padded_v_head_dim(), 1);
  }
  void store_keys(const Output& dx, const float* from, std::int64_t width, std::int64_t from_row,
                  float factor) {
    for (std::int64_t j = keys_span_.begin; j < keys_span_.end; ++j, from += from_row) {
      float* to = dx.data + batch_ * dx.batch + kv_head_ * dx.head + j * dx.row;
      std::int64_t d = 0;
      if (dx.column == 1)
        for (; d + kLanes <= width; d += kLanes) store(to + d, load(from + d) * splat(factor));
      for (; d < width; ++d) to[d * dx.column] = from[d] * factor;
    }
  }

  const BackwardArgs& args_;
  const Shape& shape_;
  const Band band_;
  const float scale_;
  const std::int64_t gradients_row_;
  const bool wants_dq_, wants_dk_, wants_dv_;
  float *const keys_across_, *const values_across_, *const keys_;
  float *const queries_, *const douts_, *const queries_rows_, *const douts_rows_;
  float *const dk_, *const dv_, *const probabilities_, *const gradients_;

  std::int64_t batch_ = 0, head_ = 0, kv_head_ = 0, tile_ = 0;
  Span keys_span_{0, 0};
  Rows lse_{};
  const float* delta_ = nullptr;
  Answer keys_are_finite_ = Answer::unknown;
  Answer queries_are_finite_ = Answer::unknown, douts_are_finite_ = Answer::unknown;
};

/// delta and turns of one tile of rows; dQ of rows that see nothing.
void prepare(const BackwardArgs& args, std::int64_t task) {
  const Shape& shape = args.shape;
  const std::int64_t pair = task / args.row_tiles, tile = task % args.row_tiles;
  const std::int64_t b = pair / shape.q_heads, h = pair % shape.q_heads;
  const Span rows = BackwardTask::row_tile(args, tile);
  const Rows out = cpu::rows_of(args.out, b, h), dout = cpu::rows_of(args.dout, b, h);
  constexpr int kAbreast = 4;  // independent sums, as each waits for itself
  for (std::int64_t i = rows.begin; i < rows.end; i += kAbreast) {
    const float *x[kAbreast], *y[kAbreast];
    float delta[kAbreast];
    for (int r = 0; r < kAbreast; ++r) {
      const std::int64_t row = lesser(i + r, rows.end - 1);
      x[r] = out.at(row);
      y[r] = dout.at(row);
    }
    dots_as_tile<kAbreast>(x, out.column, y, dout.column, shape.v_head_dim, delta);
    for (std::int64_t row = i; row < lesser(i + kAbreast, rows.end); ++row) {
      float& d = delta[row - i];
      if (args.dlse.data != nullptr)
        d -= args.dlse.data[b * args.dlse.batch + h * args.dlse.head + row * args.dlse.row];
      args.delta[pair * shape.q_len + row] = d;
    }
  }
  args.turns[task] = 0;
  if (args.dq.data == nullptr || !BackwardTask::visible_keys(args, rows).empty()) return;
  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
    float* to =
        args.dq_sums.data + b * args.dq_sums.batch + h * args.dq_sums.head + i * args.dq_sums.row;
    for (std::int64_t d = 0; d < shape.head_dim; ++d) to[d] = 0;
  }
}

/// dq from its sums.
void store_dq(const BackwardArgs& args, std::int64_t task) {
  const std::int64_t pair = task / args.row_tiles, tile = task % args.row_tiles;
  const std::int64_t b = pair / args.shape.q_heads, h = pair % args.shape.q_heads;
  const Span rows = BackwardTask::row_tile(args, tile);
  const Output &from = args.dq_sums, &to = args.dq;
  for (std::int64_t i = rows.begin; i < rows.end; ++i)
    for (std::int64_t d = 0; d < args.shape.head_dim; ++d)
      to.data[b * to.batch + h * to.head + i * to.row + d * to.column] =
          from.data[b * from.batch + h * from.head + i * from.row + d];
}

}  // namespace

void FOVEA_ISA_NAME(flash_backward_prepare)(void* opaque, int) {
  auto& args = *static_cast<BackwardArgs*>(opaque);
  const FlushSubnormals flush;
  const std::int64_t tasks = args.shape.batch * args.shape.q_heads * args.row_tiles;
  for (;;) {
    const std::int64_t n = __atomic_fetch_add(&args.next_task, 1, __ATOMIC_RELAXED);
    if (n >= tasks) return;
    prepare(args, n);
  }
}

void FOVEA_ISA_NAME(flash_backward)(void* opaque, int worker) {
  auto& args = *static_cast<BackwardArgs*>(opaque);
  const FlushSubnormals flush;
  BackwardTask task(args, args.scratch + worker * args.layout.floats);
  const std::int64_t tasks = args.shape.batch * args.shape.kv_heads * args.key_tiles;
  for (;;) {
    const std::int64_t n = __atomic_fetch_add(&args.next_task, 1, __ATOMIC_RELAXED);
    if (n >= tasks) return;
    task.run(n);
  }
}

void FOVEA_ISA_NAME(flash_backward_store_dq)(void* opaque, int) {
  auto& args = *static_cast<BackwardArgs*>(opaque);
  const std::int64_t tasks = args.shape.batch * args.shape.q_heads * args.row_tiles;
  for (;;) {
    const std::int64_t n = __atomic_fetch_add(&args.next_task, 1, __ATOMIC_RELAXED);
    if (n >= tasks) return;
    store_dq(args, n);
  }
}

}  // namespace fovea::cpu
