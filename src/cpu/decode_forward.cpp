// cpu.{avx512,avx2,portable}_decode.forward: a few query rows over many keys, at the speed at which
// K and V come from memory.
//
//   S = scores where visible, -inf elsewhere (scores.h);  P = exp(S - m);  l = rowsum P [+ sink]
//   O = (P o drop) V,  out = O / l,  lse = m + log l                     m: the row's maximum so
//   far
//
//   q [batch, q_heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim],
//   v [batch, kv_heads, kv_len, v_head_dim] -> out [batch, q_heads, q_len, v_head_dim],
//   lse [batch, q_heads, q_len]; any strides, packed or paged, in segments (sequences.h)
//
// The rows of all query heads that share a KV head are worked on together, so that K and V are read
// once. A task is a chunk of the keys of one KV head, whose length the shape alone decides: 128 to
// 512 (decode_kernels.cpp). It leaves m, l and O of each row in the workspace; a second phase
// merges them in the order of the chunks, so that results do not depend on the number of threads.
//
// A chunk is walked in tiles of 64 keys. K is read where it lies, 32 columns of a vector of keys at
// a time, widened to f32 and transposed into a slab of 2 KB (AVX-512): keys then lie across the
// vector, S = Q K^T needs no sums across it, and its sums are those of the flash kernels to the
// last bit, so that their backward fits. V is read where it lies as well, with its columns across
// the vector; sums of 16 registers (AVX-512) or 8 are kept over the tile. Rows that cannot be read
// in place (QK-norm, RoPE, a cast, elements apart) are staged in f32, a tile at a time. While one
// operand's tile is worked on, the other's next is fetched.
//
// Scratch a worker: Q, S and two staged tiles, at most 420 KB; shared: O, m, l of each chunk.
//
// Serves: what the flash forward kernels serve, for at most 64 rows that share a KV head.
#include "cpu/scores.h"
#include "cpu/softmax.h"

namespace fovea::cpu {
namespace {

/// Columns of K that are transposed at once.
constexpr std::int64_t kSlab = 32;

FOVEA_INLINE constexpr bool comes_in_pairs(Element element) {
  return element == Element::f16 || element == Element::bf16;
}

template <int kValue>
struct Number {
  static constexpr int value = kValue;
};

/// Work for each dtype that rows can be read in.
template <Element kElement>
struct Read {
  static constexpr Element element = kElement;
};
template <class Work>
FOVEA_INLINE void with_element(Element element, Work work) {
  switch (element) {
    case Element::f16:
      return work(Read<Element::f16>{});
    case Element::bf16:
      return work(Read<Element::bf16>{});
    default:
      return work(Read<Element::f32>{});
  }
}

/// Asks for listed rows that are needed soon, line by line.
class Fetch {
 public:
  Fetch() = default;
  Fetch(const RowList& rows, std::int64_t count, std::int64_t row_bytes)
      : rows_(&rows), count_(count), row_bytes_(row_bytes) {}

  /// Lines for each of `steps` steps.
  std::int64_t share(std::int64_t steps) const {
    return (count_ * ((row_bytes_ + 63) / 64) + steps - 1) / steps;
  }
  FOVEA_INLINE void step(std::int64_t lines) {
    for (; lines > 0 && row_ < count_; --lines) {
      __builtin_prefetch(rows_->at[row_] + at_, 0, 2);
      at_ += 64;
      if (at_ < row_bytes_) continue;
      at_ = 0;
      ++row_;
    }
  }

 private:
  const RowList* rows_ = nullptr;
  std::int64_t count_ = 0, row_bytes_ = 0, row_ = 0, at_ = 0;
};

/// Columns [d, d + kSlab) of kLanes keys, transposed: slab [kSlab, kLanes]. Columns beyond the
/// width are not written.
template <Element kElement>
FOVEA_INLINE void load_slab(const char* const* keys, std::int64_t d, std::int64_t width,
                            float* slab) {
  // Words of 32 bits are transposed: an element, or two.
  constexpr std::int64_t kPerWord = comes_in_pairs(kElement) ? 2 : 1;
  const std::int64_t words = lesser(width - d, kSlab) / kPerWord;
  for (std::int64_t w = 0; w < words; w += kLanes) {
    const std::int64_t at = (d / kPerWord + w) * 4;
    Vec r[kLanes];
    if (words - w >= kLanes) {
#pragma GCC unroll 16
      for (int n = 0; n < kLanes; ++n) r[n] = load(reinterpret_cast<const float*>(keys[n] + at));
    } else {
      const Mask some = first_lanes(static_cast<int>(words - w));
#pragma GCC unroll 16
      for (int n = 0; n < kLanes; ++n)
        r[n] = load(reinterpret_cast<const float*>(keys[n] + at), some);
    }
    transpose(r);
    float* to = slab + w * kPerWord * kLanes;
#pragma GCC unroll 16
    for (int n = 0; n < kLanes; ++n) {
      if constexpr (comes_in_pairs(kElement)) {
        Vec first, second;
        split_pairs<kElement>(r[n], first, second);
        store(to + 2 * n * kLanes, first);
        store(to + (2 * n + 1) * kLanes, second);
      } else {
        store(to + n * kLanes, r[n]);
      }
    }
  }
}

/// S [kRows, kPanel], a vector of keys: adds `columns` products, in the order of dot_tile.
template <int kRows>
void add_products(const float* q, std::int64_t q_row, const float* slab, std::int64_t columns,
                  bool first, float* s) {
  for (std::int64_t done = 0; done < columns; done += kPieceOfDot) {
    const float* element = q + done;
    const float* column = slab + done * kLanes;
    Vec sums[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sums[r] = splat(element[r * q_row]) * load(column);
    const auto add = [&](std::int64_t d) __attribute__((always_inline)) {
      const Vec keys = load(column + d * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sums[r] = fma(splat(element[r * q_row + d]), keys, sums[r]);
    };
    if (columns - done >= kPieceOfDot) {
#pragma GCC unroll 16
      for (std::int64_t d = 1; d < kPieceOfDot; ++d) add(d);
    } else {
      for (std::int64_t d = 1; d < columns - done; ++d) add(d);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      float* to = s + r * kPanel;
      store(to, first && done == 0 ? sums[r] : sums[r] + load(to));
    }
  }
}

/// Calls work(r, count) for rows in blocks of 8, 4, 2 and 1.
template <class Work>
FOVEA_INLINE void by_blocks(std::int64_t rows, Work work) {
  std::int64_t r = 0;
  for (; r + 8 <= rows; r += 8) work(r, Number<8>{});
  if (r + 4 <= rows) work(r, Number<4>{}), r += 4;
  if (r + 2 <= rows) work(r, Number<2>{}), r += 2;
  if (r < rows) work(r, Number<1>{});
}

/// S [rows, kPanel] = Q K^T for n <= kPanel keys. Behind them: anything.
template <Element kElement>
void score_keys(const float* q, std::int64_t rows, std::int64_t width, const RowList& list,
                std::int64_t n, float* s, Fetch fetch) {
  alignas(64) float slab[kSlab * kLanes];
  const std::int64_t steps = round_up(n, kLanes) / kLanes * (round_up(width, kSlab) / kSlab);
  const std::int64_t lines = fetch.share(steps);
  for (std::int64_t j = 0; j < n; j += kLanes) {
    const char* keys[kLanes];
    for (int x = 0; x < kLanes; ++x) keys[x] = list.at[lesser(j + x, n - 1)];
    for (std::int64_t d = 0; d < width; d += kSlab) {
      fetch.step(lines);
      load_slab<kElement>(keys, d, width, slab);
      by_blocks(rows, [&](std::int64_t r, auto count) {
        add_products<count.value>(q + r * width + d, width, slab, lesser(width - d, kSlab), d == 0,
                                  s + r * kPanel + j);
      });
    }
  }
}

/// Vectors of V's columns that go with kRows rows: 8 to 16 sums.
template <int kRows>
constexpr int kColumnVecs = kLanes == 16 ? (kRows == 1 ? 8 : 16 / kRows) : 8 / kRows;

/// O = rescale O + P V for kRows rows and kVecs vectors of columns from `at` bytes on; of the only
/// vector `some` lanes if kTail.
template <Element kElement, int kRows, int kVecs, bool kTail>
void add_columns(const RowList& list, std::int64_t at, int some, const float* p, std::int64_t n,
                 const float* rescale, float* o, std::int64_t o_row, Fetch& fetch,
                 std::int64_t lines) {
  constexpr std::int64_t kStep = kLanes * (comes_in_pairs(kElement) ? 2 : 4);
  Vec sums[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) sums[r][v] = zero();
  for (std::int64_t j = 0; j < n; ++j) {
    fetch.step(lines);
    const char* row = list.at[j] + at;
    Vec values[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v)
      values[v] = kTail ? widen<kElement>(row, some) : widen<kElement>(row + v * kStep);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = splat(p[r * kPanel + j]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) sums[r][v] = fma(weight, values[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      float* to = o + r * o_row + v * kLanes;
      store(to, fma(load(to), splat(rescale[r]), sums[r][v]));
    }
}

/// O [rows, o_row] = rescale O + P V for n keys.
template <Element kElement>
void add_values(const RowList& list, const float* p, std::int64_t n, const float* rescale,
                std::int64_t rows, std::int64_t width, float* o, std::int64_t o_row, Fetch fetch) {
  constexpr std::int64_t kSize = comes_in_pairs(kElement) ? 2 : 4;
  by_blocks(rows, [&](std::int64_t r, auto count) {
    constexpr int kRows = count.value, kMost = kColumnVecs<kRows>;
    const std::int64_t lines = fetch.share(n * ((width + kMost * kLanes - 1) / (kMost * kLanes)));
    std::int64_t d = 0;
    const auto add = [&](auto vecs, auto tail) {
      add_columns<kElement, kRows, vecs.value, tail.value != 0>(
          list, d * kSize, static_cast<int>(width - d), p + r * kPanel, n, rescale + r,
          o + r * o_row + d, o_row, fetch, lines);
      d += vecs.value * kLanes;
    };
    while (d + kMost * kLanes <= width) add(Number<kMost>{}, Number<0>{});
    if constexpr (kMost > 4)
      if (d + 4 * kLanes <= width) add(Number<4>{}, Number<0>{});
    if constexpr (kMost > 2)
      if (d + 2 * kLanes <= width) add(Number<2>{}, Number<0>{});
    if constexpr (kMost > 1)
      if (d + kLanes <= width) add(Number<1>{}, Number<0>{});
    if (d < width) add(Number<1>{}, Number<1>{});
  });
}

/// Whether n rows are free of NaN and infinity.
template <Element kElement>
bool rows_are_finite(const RowList& list, std::int64_t n, std::int64_t width) {
  constexpr std::int64_t kSize = comes_in_pairs(kElement) ? 2 : 4;
  Vec poison = zero();
  for (std::int64_t j = 0; j < n; ++j) {
    std::int64_t d = 0;
    for (; d + kLanes <= width; d += kLanes)
      poison = fma(widen<kElement>(list.at[j] + d * kSize), zero(), poison);
    if (d < width)
      poison =
          fma(widen<kElement>(list.at[j] + d * kSize, static_cast<int>(width - d)), zero(), poison);
  }
  return sum(poison) == 0;
}

class DecodeTask {
 public:
  DecodeTask(const DecodeArgs& args, float* scratch)
      : args_(args),
        shape_(args.shape),
        group_(args.shape.q_heads / args.shape.kv_heads),
        queries_(scratch + args.layout.queries),
        scores_(scratch + args.layout.scores),
        bias_(scratch + args.layout.bias),
        keys_(scratch + args.layout.keys),
        values_(scratch + args.layout.values),
        units_(args) {}

  void run(std::int64_t task) {
    const std::int64_t pair = task / args_.chunks, chunk = task % args_.chunks;
    batch_ = pair / shape_.kv_heads;
    kv_head_ = pair % shape_.kv_heads;
    maxima_ = args_.maxima + task * args_.rows;
    weights_ = args_.weights + task * args_.rows;
    sums_ = args_.sums + task * args_.rows * args_.sums_row;
    for (std::int64_t r = 0; r < args_.rows; ++r) {
      maxima_[r] = -kInfinity;
      weights_[r] = 0;
    }
    const Sequence s = sequence_of(args_, batch_);
    q_len_ = s.q_len;
    rows_ = group_ * q_len_;
    if (rows_ == 0) return;
    const Span some = band_of(args_.band, s).keys_of_some({0, q_len_});
    const Span keys =
        meet(meet(some, {0, s.kv_len}), {chunk * args_.chunk, (chunk + 1) * args_.chunk});
    if (keys.empty()) return;

    begin(s);
    // Tiles begin at multiples of their size.
    Span tile = first_tile(keys);
    list_rows(args_.k, keys_place_, tile, key_list_);
    while (!tile.empty()) {
      const Span next = meet({tile.end, tile.end + kPanel}, keys);
      key_tile(tile, next);
      tile = next;
    }
  }

 private:
  static Span first_tile(Span keys) {
    const std::int64_t begin = keys.begin / kPanel * kPanel;
    return meet({begin, begin + kPanel}, keys);
  }

  // Load Q, clear O.
  void begin(const Sequence& s) {
    keys_place_ = {batch_, kv_head_, s.k_begin};
    for (std::int64_t g = 0; g < group_; ++g) {
      const std::int64_t head = kv_head_ * group_ + g;
      heads_[g] = Scores(args_, s, head);
      if (args_.scores.dropout.threshold > 0)
        keep_[g] = Keep(args_.scores.dropout, batch_, head, shape_.q_heads);
      float* to = queries_ + g * q_len_ * shape_.head_dim;
      const Rows from = stage(args_.q, {batch_, head, s.q_begin}, {0, q_len_}, to);
      for (std::int64_t i = 0; i < q_len_; ++i)
        for (std::int64_t d = 0; d < shape_.head_dim; ++d)
          to[i * shape_.head_dim + d] = from.at(i)[d] * units_.sign;
    }
    for (std::int64_t n = 0; n < rows_ * args_.sums_row; n += kLanes) store(sums_ + n, zero());
  }

  /// key_list_ holds the tile's keys where they can be read in place, and the next one's
  /// afterwards.
  void key_tile(Span tile, Span next) {
    const std::int64_t n = tile.end - tile.begin;
    const bool sees = look(tile);
    if (sees) {
      if (!key_list_.in_place) stage_list(args_.k, keys_place_, tile, keys_, key_list_);
      list_rows(args_.v, keys_place_, tile, value_list_);
      compute_scores(tile);
    }
    list_rows(args_.k, keys_place_, next, key_list_);
    if (!sees) return;
    weigh();
    if (args_.scores.dropout.threshold > 0) drop(tile.begin);
    accumulate(tile, next.end - next.begin);
  }

  /// Which rows see which of the keys. False: none sees any.
  bool look(Span tile) {
    const std::uint64_t every = first_bits(tile.end - tile.begin);
    bool some = false;
    all_ = true;
    for (std::int64_t g = 0; g < group_; ++g) {
      std::uint64_t* seen = seen_ + g * q_len_;
      const Cover cover = heads_[g].see_along({0, q_len_}, tile, bias_ + g * q_len_ * kPanel, seen);
      some = some || cover != Cover::none;
      all_ = all_ && cover == Cover::all;
      if (cover == Cover::all)
        for (std::int64_t i = 0; i < q_len_; ++i) seen[i] = every;
    }
    return some;
  }

  // S for all rows; -inf where not visible.
  void compute_scores(Span tile) {
    const std::int64_t n = tile.end - tile.begin;
    Fetch fetch;
    if (value_list_.in_place)
      fetch = Fetch(value_list_, n, shape_.v_head_dim * size_of(value_list_.element));
    with_element(key_list_.element, [&](auto read) {
      score_keys<read.element>(queries_, rows_, shape_.head_dim, key_list_, n, scores_, fetch);
    });
    float cap_slopes[kPanel];
    for (std::int64_t r = 0; r < rows_; ++r) {
      float* s = scores_ + r * kPanel;
      const Scores& head = heads_[r / q_len_];
      if (head.bent()) head.bend_along(r % q_len_, tile.begin, bias_ + r * kPanel, s, cap_slopes);
      if (seen_[r] != ~std::uint64_t{0}) keep_lanes(s, seen_[r], -kInfinity);
    }
  }

  /// Sets the elements of a row of the tile whose bits are 0 to `other`.
  static void keep_lanes(float* s, std::uint64_t bits, float other) {
    for (int x = 0; x < kPanel; x += kLanes)
      store(s + x, select(lanes_of(bits >> x), load(s + x), splat(other)));
  }

  // P = exp2((S - m) log2(e)), exactly 1 where S = m, and the sums of P. Overwrites S.
  void weigh() {
    for (std::int64_t r = 0; r < rows_; ++r) {
      float* s = scores_ + r * kPanel;
      float top = largest_of(s);
      if (top > units_.largest || top < -units_.largest) {
        for (int x = 0; x < kPanel; x += kLanes) store(s + x, bounded(load(s + x), units_.largest));
        top = largest_of(s);
      }
      const float old = maxima_[r], now = top > old ? top : old;
      const Vec base = splat(now == -kInfinity ? 0 : now), factor = splat(units_.to_base2);
      Vec weight = zero();
      for (int x = 0; x < kPanel; x += kLanes) {
        const Vec e = exp2((load(s + x) - base) * factor);
        weight = weight + e;
        store(s + x, e);
      }
      rescale_[r] = now == old ? 1 : exp2((splat(old) - base) * factor)[0];
      maxima_[r] = now;
      weights_[r] = fma(weights_[r], rescale_[r], sum(weight));
    }
  }
  static float largest_of(const float* s) {
    Vec top = load(s);
    for (int x = kLanes; x < kPanel; x += kLanes) top = max(top, load(s + x));
    return largest_lane(top);
  }

  // P o drop, but for the factor of those that stay.
  void drop(std::int64_t key) {
    std::uint64_t kept[kDecodeMaxRows];
    for (std::int64_t g = 0; g < group_; ++g) {
      keep_[g].along(0, q_len_, key, kept);
      for (std::int64_t i = 0; i < q_len_; ++i)
        keep_lanes(scores_ + (g * q_len_ + i) * kPanel, kept[i], 0);
    }
  }

  // O = rescale O + P V; fetches the next keys.
  void accumulate(Span tile, std::int64_t next) {
    const std::int64_t n = tile.end - tile.begin, width = shape_.v_head_dim;
    Fetch fetch;
    if (key_list_.in_place)
      fetch = Fetch(key_list_, next, shape_.head_dim * size_of(key_list_.element));
    if (!value_list_.in_place) stage_list(args_.v, keys_place_, tile, values_, value_list_);
    with_element(value_list_.element, [&](auto read) {
      if (all_ || rows_are_finite<read.element>(value_list_, n, width))
        add_values<read.element>(value_list_, scores_, n, rescale_, rows_, width, sums_,
                                 args_.sums_row, fetch);
      else
        add_visible_values(n);
    });
  }

  /// The same where V holds NaN or infinity, which a weight of 0 would not silence.
  void add_visible_values(std::int64_t n) {
    const std::int64_t width = shape_.v_head_dim;
    alignas(64) float value[kMaxWidth];
    for (std::int64_t r = 0; r < rows_; ++r) {
      float* o = sums_ + r * args_.sums_row;
      for (std::int64_t d = 0; d < width; ++d) o[d] *= rescale_[r];
      for (std::int64_t j = 0; j < n; ++j) {
        if ((seen_[r] >> j & 1) == 0) continue;
        widen_row(value_list_.element, value_list_.at[j], 1, width, value);
        for (std::int64_t d = 0; d < width; ++d)
          o[d] = fma(scores_[r * kPanel + j], value[d], o[d]);
      }
    }
  }

  const DecodeArgs& args_;
  const Shape& shape_;
  const std::int64_t group_;
  float *const queries_, *const scores_, *const bias_, *const keys_, *const values_;
  const ScoreUnits units_;

  // The task.
  std::int64_t batch_ = 0, kv_head_ = 0, q_len_ = 0, rows_ = 0;
  float *maxima_ = nullptr, *weights_ = nullptr, *sums_ = nullptr;
  Place keys_place_{};
  Scores heads_[kDecodeMaxRows];
  Keep keep_[kDecodeMaxRows];

  // The tile.
  RowList key_list_, value_list_;
  std::uint64_t seen_[kDecodeMaxRows];
  float rescale_[kDecodeMaxRows];
  bool all_ = false;  ///< every row sees every key
};

/// Merges what the chunks left of one row, in their order.
void merge_row(const DecodeArgs& args, const ScoreUnits& units, std::int64_t task, float* sums) {
  const Shape& shape = args.shape;
  const std::int64_t pair = task / args.rows, r = task % args.rows;
  const std::int64_t batch = pair / shape.kv_heads, kv_head = pair % shape.kv_heads;
  const std::int64_t group = shape.q_heads / shape.kv_heads;
  const Sequence s = sequence_of(args, batch);
  if (r >= group * s.q_len) return;
  const std::int64_t first = pair * args.chunks * args.rows + r;
  const std::int64_t width = round_up(shape.v_head_dim, kLanes);
  float top = -kInfinity;
  for (std::int64_t c = 0; c < args.chunks; ++c) {
    const float maximum = args.maxima[first + c * args.rows];
    if (maximum > top) top = maximum;
  }
  const float base = top == -kInfinity ? 0 : top;
  for (std::int64_t d = 0; d < width; d += kLanes) store(sums + d, zero());
  double weight = 0;
  for (std::int64_t c = 0; c < args.chunks; ++c) {
    const std::int64_t at = first + c * args.rows;
    if (args.weights[at] == 0) continue;
    const Vec factor = exp2((splat(args.maxima[at]) - splat(base)) * splat(units.to_base2));
    weight += static_cast<double>(factor[0]) * static_cast<double>(args.weights[at]);
    const float* o = args.sums + at * args.sums_row;
    for (std::int64_t d = 0; d < width; d += kLanes)
      store(sums + d, fma(load(o + d), factor, load(sums + d)));
  }
  const Place place{batch, kv_head * group + r / s.q_len, s.q_begin};
  finish_row(args, units, place, r % s.q_len, top, static_cast<float>(weight), sums);
}

FOVEA_INLINE std::int64_t take_task(DecodeArgs& args) {
  return __atomic_fetch_add(&args.next_task, 1, __ATOMIC_RELAXED);
}

}  // namespace

void FOVEA_ISA_NAME(decode)(void* opaque, int worker) {
  auto& args = *static_cast<DecodeArgs*>(opaque);
  const FlushSubnormals flush;
  DecodeTask task(args, args.scratch + worker * args.layout.floats);
  const std::int64_t tasks = args.shape.batch * args.shape.kv_heads * args.chunks;
  for (std::int64_t n = take_task(args); n < tasks; n = take_task(args)) task.run(n);
}

void FOVEA_ISA_NAME(decode_merge)(void* opaque, int worker) {
  auto& args = *static_cast<DecodeArgs*>(opaque);
  const FlushSubnormals flush;
  const ScoreUnits units(args);
  float* sums = args.scratch + worker * args.layout.floats + args.layout.sums;
  const std::int64_t tasks = args.shape.batch * args.shape.kv_heads * args.rows;
  for (std::int64_t n = take_task(args); n < tasks; n = take_task(args))
    merge_row(args, units, n, sums);
}

}  // namespace fovea::cpu
