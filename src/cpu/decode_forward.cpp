// cpu.{avx512,avx2,portable}_decode.forward: a few query rows over many keys, at the speed at which
// K and V come from memory.
//
//   S = scores where visible, -inf elsewhere (scores.h);  P = exp(S - m);  l = rowsum P [+ sink]
//   O = (P o drop) V,  out = O / l,  lse = m + log l           m: the row's maximum so far
//
//   q [batch, q_heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim],
//   v [batch, kv_heads, kv_len, v_head_dim] -> out [batch, q_heads, q_len, v_head_dim],
//   lse [batch, q_heads, q_len]; any strides, packed or paged, in segments (plain_rows.h)
//
// The rows of all query heads that share a KV head are worked on together, so that K and V are read
// once. A task is a chunk of the keys of one KV head, whose length kv_len alone decides: 128 to 512
// (decode_kernels.cpp). It leaves m, l and O of each row in the workspace; a second phase merges
// them in the order of the chunks, so that results depend neither on the number of threads nor on
// the rest of the batch.
//
// A chunk is walked in tiles of 64 keys. K is read where it lies, a block of a vector of keys by 16
// words of 32 bits at a time, which is transposed in registers and widened: keys then lie across
// the vector, S = Q K^T needs no sums across it, and its sums are those of the flash kernels to the
// last bit, so that their backward fits. Up to 8 rows (AVX-512) or 4 take part while the block is
// in registers. V is read where it lies as well, with its columns across the vector; 8 or 16 sums
// are kept in registers over the tile. Rows that cannot be read in place (QK-norm, RoPE, a cast,
// elements apart) are staged in f32, a tile at a time.
//
// Each load asks for what the next tile has in its place: asked for in bulk, lines would hold up
// the loads that come after.
//
// Scratch a worker: Q, S and two staged tiles, at most 560 KB; shared: O, m, l of each chunk.
//
// Measured on 2 hardware threads of one core of an AMD EPYC (Zen 4, 3.7 GHz), 2026-11-30, with
// `fovea bench --direction forward --kernel cpu.avx512_decode --peer cpu.avx512 <case>`:
//   b1_hq8_hkv8_q1_k65536_d128_f32      18 to 19 GB/s   4.1 times as fast as cpu.avx512
//   b4_hq32_hkv8_q1_k16384_d128_bf16    15 to 17 GB/s   27 to 29 times, half the peak of f32
//   b1_hq32_hkv32_q1_k16384_d128_bf16   15 to 18 GB/s   7.5 to 8 times
// while plain reads of one stream gave 20 to 28 GB/s, of two at a time 19. On an Intel Xeon:
// docs/performance/cpu.md.
//
// Serves: what the flash forward kernels serve, for at most 16 queries of a sequence and 128 rows
// that share a KV head.
#include "cpu/scores.h"
#include "cpu/softmax.h"

namespace fovea::cpu {
namespace {

/// Rows whose sums fit the registers beside a transposed block of K.
constexpr int kScoreRows = kLanes == 16 ? 8 : 4;
/// Bytes of a line of the caches.
constexpr std::int64_t kLine = 64;

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

/// Columns that are whole pieces of a dot product and whole transposed blocks.
template <Element kElement>
constexpr int kUnit = comes_in_pairs(kElement) && kLanes == 16 ? 32 : 16;

/// Adds kUnit products to S [kRows, kPanel] for a vector of keys, in the order of dot_tile. Asks
/// for the same columns of later keys.
template <Element kElement, int kRows>
FOVEA_INLINE void add_products(const float* q, std::int64_t q_row, const char* const* keys,
                               const char* const* later, std::int64_t d, float* s) {
  constexpr int kPerWord = comes_in_pairs(kElement) ? 2 : 1, kBlock = kLanes * kPerWord;
  Vec sums[kRows];
#pragma GCC unroll 4
  for (int block = 0; block < kUnit<kElement>; block += kBlock) {
    const std::int64_t at = (d + block) / kPerWord * 4;
    Vec r[kLanes];
#pragma GCC unroll 16
    for (int n = 0; n < kLanes; ++n) {
      if (at % kLine == 0) __builtin_prefetch(later[n] + at, 0, 3);
      r[n] = load(reinterpret_cast<const float*>(keys[n] + at));
    }
    transpose(r);
#pragma GCC unroll 16
    for (int n = 0; n < kLanes; ++n) {
      Vec columns[2] = {r[n], r[n]};
      if constexpr (kPerWord == 2) split_pairs<kElement>(r[n], columns[0], columns[1]);
#pragma GCC unroll 2
      for (int e = 0; e < kPerWord; ++e) {
        const int column = block + n * kPerWord + e;
#pragma GCC unroll 8
        for (int row = 0; row < kRows; ++row) {
          const Vec element = splat(q[row * q_row + d + column]);
          sums[row] = column % kPieceOfDot == 0 ? element * columns[e]
                                                : fma(element, columns[e], sums[row]);
          if (column % kPieceOfDot != kPieceOfDot - 1) continue;
          float* to = s + row * kPanel;
          store(to, d + column < kPieceOfDot ? sums[row] : sums[row] + load(to));
        }
      }
    }
  }
}

/// The same for the columns behind the last unit.
template <Element kElement>
void add_last_products(const float* q, std::int64_t q_row, std::int64_t rows,
                       const char* const* keys, std::int64_t d, std::int64_t columns, float* s) {
  constexpr int kPerWord = comes_in_pairs(kElement) ? 2 : 1;
  alignas(64) float slab[kUnit<kElement> * kLanes];
  const std::int64_t words = columns / kPerWord;
  for (std::int64_t w = 0; w < words; w += kLanes) {
    const Mask some = first_lanes(static_cast<int>(lesser(words - w, kLanes)));
    Vec r[kLanes];
    for (int n = 0; n < kLanes; ++n)
      r[n] = load(reinterpret_cast<const float*>(keys[n] + (d / kPerWord + w) * 4), some);
    transpose(r);
    for (int n = 0; n < kLanes; ++n) {
      float* to = slab + (w + n) * kPerWord * kLanes;
      Vec columns_of[2] = {r[n], r[n]};
      if constexpr (kPerWord == 2) split_pairs<kElement>(r[n], columns_of[0], columns_of[1]);
      for (int e = 0; e < kPerWord; ++e) store(to + e * kLanes, columns_of[e]);
    }
  }
  for (std::int64_t row = 0; row < rows; ++row, q += q_row, s += kPanel)
    for (std::int64_t done = 0; done < columns; done += kPieceOfDot) {
      const float* column = slab + done * kLanes;
      Vec sums = splat(q[d + done]) * load(column);
      for (std::int64_t x = 1; x < lesser(kPieceOfDot, columns - done); ++x)
        sums = fma(splat(q[d + done + x]), load(column + x * kLanes), sums);
      store(s, d + done == 0 ? sums : sums + load(s));
    }
}

/// Calls work(r, count) for blocks of up to kScoreRows rows, as few as can be.
template <class Work>
FOVEA_INLINE void by_score_blocks(std::int64_t rows, Work work) {
  std::int64_t r = 0;
  for (; r + kScoreRows <= rows; r += kScoreRows) work(r, Number<kScoreRows>{});
  switch (rows - r) {
    case 1:
      return work(r, Number<1>{});
    case 2:
      return work(r, Number<2>{});
    case 3:
      return work(r, Number<3>{});
#if defined(__AVX512F__)
    case 4:
      return work(r, Number<4>{});
    case 5:
      return work(r, Number<5>{});
    case 6:
      return work(r, Number<6>{});
    case 7:
      return work(r, Number<7>{});
#endif
    default:
      return;
  }
}

/// S [rows, kPanel] = Q K^T for n <= kPanel keys. Behind them: anything.
template <Element kElement>
void score_keys(const float* q, std::int64_t rows, std::int64_t width, const RowList& list,
                const RowList& next, std::int64_t n, float* s) {
  const std::int64_t units = width / kUnit<kElement> * kUnit<kElement>;
  by_score_blocks(rows, [&](std::int64_t r, auto count) {
    const RowList& later = r == 0 ? next : list;
    for (std::int64_t j = 0; j < n; j += kLanes)
      for (std::int64_t d = 0; d < units; d += kUnit<kElement>)
        add_products<kElement, count.value>(q + r * width, width, list.at + j, later.at + j, d,
                                            s + r * kPanel + j);
  });
  if (units == width) return;
  for (std::int64_t j = 0; j < n; j += kLanes)
    add_last_products<kElement>(q, width, rows, list.at + j, units, width - units, s + j);
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

/// Vectors of V's columns that go with kRows rows: 8 to 16 sums.
template <int kRows>
constexpr int kColumnVecs = kLanes == 16 ? (kRows == 1 ? 8 : 16 / kRows) : 8 / kRows;

/// O = rescale O + P V for kRows rows and kVecs vectors of columns from `at` bytes on; of the only
/// vector `some` lanes if kTail.
template <Element kElement, int kRows, int kVecs, bool kTail>
void add_columns(const RowList& list, const RowList& next, std::int64_t at, int some,
                 const float* p, std::int64_t n, const float* rescale, float* o,
                 std::int64_t o_row) {
  constexpr std::int64_t kStep = kLanes * (comes_in_pairs(kElement) ? 2 : 4);
  // Two vectors' columns in turn, which costs half as much, until the sums are stored.
  constexpr bool kSplit = kElement == Element::bf16 && kVecs % 2 == 0 && !kTail;
  Vec sums[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) sums[r][v] = zero();
  for (std::int64_t j = 0; j < n; ++j) {
    for (std::int64_t line = 0; line < kVecs * kStep; line += kLine)
      __builtin_prefetch(next.at[j] + at + line, 0, 2);
    const char* row = list.at[j] + at;
    Vec values[kVecs];
    if constexpr (kSplit) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; v += 2)
        split_pairs<kElement>(load(reinterpret_cast<const float*>(row + v * kStep)), values[v],
                              values[v + 1]);
    } else {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v)
        values[v] = kTail ? widen<kElement>(row, some) : widen<kElement>(row + v * kStep);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = splat(p[r * kPanel + j]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) sums[r][v] = fma(weight, values[v], sums[r][v]);
    }
  }
  if constexpr (kSplit) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; v += 2) join_pairs(sums[r][v], sums[r][v + 1]);
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
void add_values(const RowList& list, const RowList& next, const float* p, std::int64_t n,
                const float* rescale, std::int64_t rows, std::int64_t width, float* o,
                std::int64_t o_row) {
  constexpr std::int64_t kSize = comes_in_pairs(kElement) ? 2 : 4;
  by_blocks(rows, [&](std::int64_t r, auto count) {
    constexpr int kRows = count.value, kMost = kColumnVecs<kRows>;
    const RowList& later = r == 0 ? next : list;
    std::int64_t d = 0;
    const auto add = [&](auto vecs, auto tail) {
      add_columns<kElement, kRows, vecs.value, tail.value != 0>(
          list, later, d * kSize, static_cast<int>(width - d), p + r * kPanel, n, rescale + r,
          o + r * o_row + d, o_row);
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
    const Chunk chunk = chunk_of(task);
    // What this worker will probably take next.
    const Chunk later = chunk_of(task + args_.workers);
    maxima_ = args_.maxima + task * args_.rows;
    weights_ = args_.weights + task * args_.rows;
    sums_ = args_.sums + task * args_.rows * args_.sums_row;
    for (std::int64_t r = 0; r < args_.rows; ++r) {
      maxima_[r] = -kInfinity;
      weights_[r] = 0;
    }
    if (chunk.keys.empty()) return;

    begin(chunk);
    Span tile = first_tile(chunk.keys);
    list(chunk, tile, lists_[0]);
    for (int now = 0; !tile.empty(); now = 1 - now) {
      const Span next = meet({tile.end, tile.end + kPanel}, chunk.keys);
      int fetched = 1 - now;
      if (!next.empty())
        list(chunk, next, lists_[fetched]);
      else if (!later.keys.empty())
        list(later, first_tile(later.keys), lists_[fetched]);
      else
        fetched = now;
      key_tile(tile, lists_[now], lists_[fetched]);
      tile = next;
    }
  }

 private:
  /// A task: some keys of one KV head.
  struct Chunk {
    Sequence sequence;
    Place place{};
    Span keys{0, 0};  ///< that some row sees by length and band
  };
  Chunk chunk_of(std::int64_t task) const {
    const std::int64_t pair = task / args_.chunks, n = task % args_.chunks;
    Chunk chunk;
    if (pair >= shape_.batch * shape_.kv_heads) return chunk;
    chunk.sequence = sequence_of(args_, pair / shape_.kv_heads);
    const Sequence& s = chunk.sequence;
    chunk.place = {s.batch, pair % shape_.kv_heads, s.k_begin};
    if (s.q_len == 0) return chunk;
    chunk.keys = meet(band_of(args_.band, s).keys_of_some({0, s.q_len}),
                      {n * args_.chunk, lesser((n + 1) * args_.chunk, s.kv_len)});
    return chunk;
  }

  /// Tiles begin at multiples of their size.
  static Span first_tile(Span keys) {
    const std::int64_t begin = keys.begin / kPanel * kPanel;
    return meet({begin, begin + kPanel}, keys);
  }

  /// Keys and values of a tile.
  struct Lists {
    RowList keys, values;
  };
  void list(const Chunk& chunk, Span tile, Lists& lists) const {
    list_rows(args_.k, chunk.place, tile, lists.keys);
    list_rows(args_.v, chunk.place, tile, lists.values);
  }
  /// What to ask for while `list` is worked on.
  static const RowList& to_fetch(const RowList& list, const RowList& next) {
    return next.in_place ? next : list;
  }

  // Load Q, clear O.
  void begin(const Chunk& chunk) {
    const Sequence& s = chunk.sequence;
    keys_place_ = chunk.place;
    q_len_ = s.q_len;
    rows_ = group_ * q_len_;
    for (std::int64_t g = 0; g < group_; ++g) {
      const std::int64_t head = chunk.place.head * group_ + g;
      heads_[g] = Scores(args_, s, head);
      if (args_.scores.dropout.threshold > 0)
        keep_[g] = Keep(args_.scores.dropout, s.batch, head, shape_.q_heads);
      float* to = queries_ + g * q_len_ * shape_.head_dim;
      const Rows from = stage(args_.q, {s.batch, head, s.q_begin}, {0, q_len_}, to);
      for (std::int64_t i = 0; i < q_len_; ++i)
        for (std::int64_t d = 0; d < shape_.head_dim; ++d)
          to[i * shape_.head_dim + d] = from.at(i)[d] * units_.sign;
    }
    for (std::int64_t n = 0; n < rows_ * args_.sums_row; n += kLanes) store(sums_ + n, zero());
  }

  void key_tile(Span tile, Lists& lists, const Lists& next) {
    if (!look(tile)) return;
    compute_scores(tile, lists.keys, next.keys);
    weigh();
    if (args_.scores.dropout.threshold > 0) drop(tile.begin);
    accumulate(tile, lists.values, next.values);
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
  void compute_scores(Span tile, RowList& keys, const RowList& next) {
    if (!keys.in_place) stage_list(args_.k, keys_place_, tile, keys_, keys);
    with_element(keys.element, [&](auto read) {
      score_keys<read.element>(queries_, rows_, shape_.head_dim, keys, to_fetch(keys, next),
                               tile.end - tile.begin, scores_);
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
    std::uint64_t kept[kDecodeMaxQueries];
    for (std::int64_t g = 0; g < group_; ++g) {
      keep_[g].along(0, q_len_, key, kept);
      for (std::int64_t i = 0; i < q_len_; ++i)
        keep_lanes(scores_ + (g * q_len_ + i) * kPanel, kept[i], 0);
    }
  }

  // O = rescale O + P V.
  void accumulate(Span tile, RowList& values, const RowList& next) {
    const std::int64_t n = tile.end - tile.begin, width = shape_.v_head_dim;
    if (!values.in_place) stage_list(args_.v, keys_place_, tile, values_, values);
    with_element(values.element, [&](auto read) {
      if (all_ || rows_are_finite<read.element>(values, n, width))
        add_values<read.element>(values, to_fetch(values, next), scores_, n, rescale_, rows_, width,
                                 sums_, args_.sums_row);
      else
        add_visible_values(values, n);
    });
  }

  /// The same where V holds NaN or infinity, which a weight of 0 would not silence.
  void add_visible_values(const RowList& values, std::int64_t n) {
    const std::int64_t width = shape_.v_head_dim;
    alignas(64) float value[kMaxWidth];
    for (std::int64_t r = 0; r < rows_; ++r) {
      float* o = sums_ + r * args_.sums_row;
      for (std::int64_t d = 0; d < width; ++d) o[d] *= rescale_[r];
      for (std::int64_t j = 0; j < n; ++j) {
        if ((seen_[r] >> j & 1) == 0) continue;
        widen_row(values.element, values.at[j], 1, width, value);
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
  std::int64_t q_len_ = 0, rows_ = 0;
  float *maxima_ = nullptr, *weights_ = nullptr, *sums_ = nullptr;
  Place keys_place_{};
  Scores heads_[kDecodeMaxRows];
  Keep keep_[kDecodeMaxRows];
  Lists lists_[2];  ///< of a tile and the next

  // The tile.
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
  const Total total = total_of(args, units, place.head, top, static_cast<float>(weight));
  finish_row(args, place, r % s.q_len, total, sums);
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
