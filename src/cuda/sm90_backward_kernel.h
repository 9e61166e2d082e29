// cuda.sm90.backward: gradients of attention by Hopper's warpgroup products, fed by its copy
// engine.
//
//   P = exp2(c S - lse log2(e)) where visible, else 0        c = scale log2(e)
//   dS = P o (dO V^T - delta)                                delta = rowsum(dO o O) - dlse
//   dV = P^T dO,  dK = scale dS^T Q,  dQ = scale dS K
//
//   q [batch, q_heads, q_len, head_dim], k, dk [batch, kv_heads, kv_len, head_dim],
//   v, dv [batch, kv_heads, kv_len, v_head_dim], dout [batch, q_heads, q_len, v_head_dim],
//   lse, delta [batch, q_heads, q_len], sums of dq f32 [batch, q_heads, q_len, head_dim]; or packed
//
// A block stays on its multiprocessor and takes one tile of 128 keys after the other; of each it
// walks the queries of all heads of the group that see some of it, 64 at a time (D 64: 128). Four
// warpgroups:
//   0  one warp has K, V, Q, dO and what prepare knows of their rows copied (rings of two stages:
//      full, empty); three look for values that are not finite
//   1, 2  own 64 keys each, a warp 16: scores are made transposed, keys down, so that P^T and dS^T
//      are the left operands of dV and dK where they were made; dS goes to shared memory for
//   3  which computes dQ of the tile, 64 rows and 64 columns at a time, and adds it to the sums in
//      global memory
//
//   step:  S = K Q^T;  wait;  P;  dP = V dO^T, dV += P^T dO issued;  wait for dP;  dS to shared
//          memory;  dK += dS^T Q;  wait
//
// A value that is not finite must reach what sees it and nothing else; 0 NaN would reach all. In
// tiles that not all rows see whole and where a helper has found such a value, dV, dK and dQ are
// summed by element, over the pairs that see each other. Seldom, and very slow.
//
// Before: prepare.h (delta). After: finish.h (sums of dq to dq; dk where it needs more than a
// store).
//
// Shared memory, D 128: K 2 x 32 KB, V 2 x 32, Q 2 x 16, dO 2 x 16, dS 2 x 16, rows 1: 225 KB;
// D 64: K, V 2 x 16 each, Q, dO 2 x 16 each, dS 2 x 32, rows 3: 195 KB.
// Registers: 24, 208, 208 and 72 for the four; D 128: dV 64, dK 64, S or dP 32, P 16, dS 16; D 64:
// dV 32, dK 32, S or dP 64, P 32, dS 32.
//
// Serves: f16 and bf16, head_dim and v_head_dim to 128, bands, lengths, GQA, sinks; layouts that
// the copy engine can read.
#pragma once

#include "cuda/device/wgmma.h"
#include "cuda/sm80_scores.h"
#include "cuda/sm80_tiles.h"
#include "cuda/sm90_backward_feed.h"

namespace fovea::cuda::FOVEA_WORLD {

/// P and dS of one pair, by element.
struct HopperPair {
  float p, ds;
};

/// What both kinds of warpgroups do that compute.
template <class S>
class HopperBackwardWorker : protected HopperBackwardBlock<S> {
 protected:
  using Block = HopperBackwardBlock<S>;
  using L = HopperBackwardLayout<S>;
  using T = typename S::T;
  using Block::args_, Block::base_, Block::tasks_, Block::wait;

  FOVEA_DEVICE explicit HopperBackwardWorker(const HopperBackwardArgs& args) : Block(args) {}

  /// Read anew each time: what is kept of it would leave no registers.
  FOVEA_DEVICE const HopperKeys& task() const { return tasks_[fresh(keys_.stage())]; }
  /// Of the task; the same in all lanes.
  FOVEA_DEVICE int field(int HopperKeys::*of) const { return shuffle(task().*of, 0); }
  /// Who the thread is, found out anew each time: what is computed from it would else be kept.
  FOVEA_DEVICE int lane() const { return fresh(thread_index()) & 31; }
  FOVEA_DEVICE int quad() const { return fresh(thread_index()) & 3; }
  FOVEA_DEVICE int warp_in_group() const { return fresh(thread_index()) / 32 & 3; }

  FOVEA_DEVICE bool next_task() {
    wait(L::kKeyFull + keys_.stage(), keys_.parity());
    return field(&HopperKeys::live) != 0;
  }
  FOVEA_DEVICE void release_task() {
    this->arrive_by_warp(L::kKeyEmpty + keys_.stage());
    keys_.advance();
  }

  /// Calls walk() with each head of the group.
  template <class Walk>
  FOVEA_DEVICE void for_heads(Walk&& walk) {
    const int heads = this->group();
    FOVEA_ROLL
    for (int g = 0; g < heads; ++g) {
      head_ = field(&HopperKeys::kv_head) * heads + g;
      walk();
    }
  }

  // Addresses are found anew each time: kept, they would not leave registers for what is not
  // seldom.
  FOVEA_DEVICE const T* row_of(const plain::Segment<const char*>& of, int head, int first,
                               int row) const {
    return reinterpret_cast<const T*>(of.data) + fresh(task().batch) * of.batch +
           fresh(head) * of.head + (static_cast<std::int64_t>(first) + fresh(row)) * of.row;
  }
  FOVEA_DEVICE float of_row(const auto& of, int row) const {
    return of.data[fresh(task().batch) * of.batch + fresh(head_) * of.head +
                   (static_cast<std::int64_t>(task().q_begin) + fresh(row)) * of.row];
  }
  FOVEA_DEVICE const T* query_at(int i) const { return row_of(args_.q, head_, task().q_begin, i); }
  FOVEA_DEVICE const T* dout_at(int i) const {
    return row_of(args_.dout, head_, task().q_begin, i);
  }
  FOVEA_DEVICE const T* key_at(int j) const {
    return row_of(args_.k, task().kv_head, task().k_begin, j);
  }
  FOVEA_DEVICE static float dot(const T* x, const T* y, std::int64_t width) {
    const auto count = static_cast<int>(width);
    float sum = 0;
    FOVEA_ROLL
    for (int n = 0; n < count; ++n) sum = fma(to_f32(x[n]), to_f32(y[n]), sum);
    return sum;
  }
  /// dS where a row sees a single key and no sink: dP is the sum in delta then, exactly.
  FOVEA_DEVICE float gradient_of_only_key(float ds, int i) const {
    if (!is_finite(ds)) return ds;
    return args_.dlse.data == nullptr ? 0 : of_row(args_.dlse, i);
  }
  /// For a row and a key that see each other.
  FOVEA_DEVICE HopperPair pair_of(int i, int key) const {
    const HopperKeys& t = task();
    const float lse = of_row(args_.lse, i), delta = of_row(args_.delta, i);
    const float score = dot(query_at(i), key_at(key), args_.shape.head_dim);
    const T* v = row_of(args_.v, t.kv_head, t.k_begin, key);
    const float p =
        lse == kNegativeInfinity ? 0 : exp2(fma(score, args_.exponent_scale, -lse * kLog2e));
    const float ds = p * (dot(v, dout_at(i), args_.shape.v_head_dim) - delta);
    return {p, t.sees_one(i) && !this->has_sink(head_) ? gradient_of_only_key(ds, i) : ds};
  }

  typename Block::Place keys_, rows_at_, scores_at_;
  int head_ = 0;
};

/// A warpgroup with 64 keys.
template <class S>
class HopperKeyWorker : HopperBackwardWorker<S> {
  using Base = HopperBackwardWorker<S>;
  using L = HopperBackwardLayout<S>;
  using T = typename S::T;
  using Base::args_, Base::base_, Base::rows_, Base::found_, Base::wait, Base::keys_,
      Base::rows_at_, Base::scores_at_, Base::task, Base::field, Base::lane, Base::quad,
      Base::warp_in_group;
  static constexpr int kDepth = S::kDepth, kRows = S::kRows, kSteps = kDepth / 16;

 public:
  FOVEA_DEVICE HopperKeyWorker(const HopperBackwardArgs& args, int group)
      : Base(args), group_(group) {}

  FOVEA_DEVICE void run() {
    while (this->next_task()) {
      FOVEA_UNROLL
      for (int n = 0; n < kDepth / 2; ++n) dk_[n] = dv_[n] = 0;
      this->for_heads([&] { walk(); });
      store();
      this->release_task();
    }
  }

 private:
  /// The lane's key r.
  FOVEA_DEVICE int key_of(int r) const {
    return task().first_key + group_ * S::kHalf + warp_in_group() * 16 + lane() / 4 + 8 * r;
  }

  // Queries that see none of the keys, some, all, some, none. Products must not stand in branches.
  FOVEA_DEVICE void walk() {
    int tile = field(&HopperKeys::begin);
    FOVEA_ROLL
    for (int part = 0; part < 5; ++part) {
      const int stop =
          part < 4 ? shuffle(task().halves[group_].at[part], 0) : field(&HopperKeys::end);
      if (part == 0 || part == 4) {
        FOVEA_ROLL
        for (; tile < stop; ++tile) skip();
      } else if (part == 2) {
        FOVEA_ROLL
        for (; tile < stop; ++tile) step<false>(tile);
      } else {
        FOVEA_ROLL
        for (; tile < stop; ++tile) step<true>(tile);
      }
    }
  }

  // The stage is released when it has arrived: what arrives later would count for its next turn.
  FOVEA_DEVICE void skip() {
    wait(L::kQueryFull + rows_at_.stage(), rows_at_.parity());
    wait(L::kDoutFull + rows_at_.stage(), rows_at_.parity());
    FOVEA_UNROLL
    for (int n = 0; n < kRows / 4; ++n) gradients_[n] = 0;
    give_scores(false);
    release_rows();
  }

  template <bool kPartial>
  FOVEA_DEVICE void step(int tile) {
    wait(L::kQueryFull + rows_at_.stage(), rows_at_.parity());
    multiply(L::kKeys, L::kQueries);
    products_commit();
    float lse[kRows / 4];
    read_rows(kLse, lse);  // while the products run
    products_wait<0>();
    settle(scores_);
    weigh<kPartial>(tile, lse);

    wait(L::kDoutFull + rows_at_.stage(), rows_at_.parity());
    multiply(L::kValues, L::kDouts);
    products_commit();
    float delta[kRows / 4];
    if constexpr (kPartial) {
      products_wait<0>();
      settle(scores_);
      read_rows(kDelta, delta);
      make_gradients<true>(tile, delta);
      const bool by_element = must_go_by_element();
      give_scores(by_element);
      if (by_element) {
        add_by_element(tile);
      } else {
        products_fence();
        add_to(dv_, weights_, L::kDouts);
        add_to(dk_, gradients_, L::kQueries);
        products_commit();
        products_wait<0>();
        settle_sums();
      }
    } else {
      add_to(dv_, weights_, L::kDouts);
      products_commit();
      read_rows(kDelta, delta);
      products_wait<1>();
      settle(scores_);
      make_gradients<false>(tile, delta);
      give_scores(false);
      products_fence();
      add_to(dk_, gradients_, L::kQueries);
      products_commit();
      products_wait<0>();
      settle_sums();
    }
    release_rows();
  }
  FOVEA_DEVICE void release_rows() {
    this->arrive_by_warp(L::kRowsEmpty + rows_at_.stage());
    rows_at_.advance();
  }
  FOVEA_DEVICE void settle_sums() {
    settle(dv_);
    settle(dk_);
    settle(weights_);
    settle(gradients_);
  }

  // Scores = K Q^T, or V dO^T.
  FOVEA_DEVICE void multiply(int left, int right) {
    const MatrixAt a =
        MatrixAt::by_rows(base_ + left + group_ * S::kHalf * 128) + keys_.stage() * S::kKeyBytes;
    const MatrixAt b = MatrixAt::by_rows(base_ + right) + rows_at_.stage() * S::kRowBytes;
    products_fence();
    FOVEA_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      const MatrixAt x = a + (i / 4 * S::kKeyPanel + i % 4 * 32);
      const MatrixAt y = b + (i / 4 * S::kRowPanel + i % 4 * 32);
      if (i == 0)
        Wgmma<kRows>::template shared_first<T, Lies::by_rows>(scores_, x, y);
      else
        Wgmma<kRows>::template shared<T, Lies::by_rows>(scores_, x, y, true);
    }
  }
  // Sums += P^T dO, or dS^T Q.
  FOVEA_DEVICE void add_to(float (&sums)[kDepth / 2], const std::uint32_t (&left)[kRows / 4],
                           int right) {
    const MatrixAt b =
        MatrixAt::by_columns(base_ + right, S::kRowPanel) + rows_at_.stage() * S::kRowBytes;
    FOVEA_UNROLL
    for (int i = 0; i < kRows / 16; ++i)
      Wgmma<kDepth>::template registers<T, Lies::by_columns>(sums, left + 4 * i, b + i * 2048,
                                                             true);
  }

  /// Of the tile's rows, as RowTiles has them.
  enum Which { kLse, kDelta, kShare };
  /// For a column of the lane's, less its first, a constant.
  FOVEA_DEVICE float of_row(Which which, int column) const {
    return rows_[rows_at_.stage() * L::kOfRows + column / kPrepareRows * RowTiles::kFloats +
                 which * kPrepareRows + column % kPrepareRows + 2 * quad()];
  }
  FOVEA_DEVICE void read_rows(Which which, float (&to)[kRows / 4]) const {
    FOVEA_UNROLL
    for (int n = 0; n < kRows / 4; ++n) to[n] = of_row(which, 8 * (n / 2) + n % 2);
  }

  /// Which of the lane's columns see one of its keys.
  struct Sight {
    int offset;           ///< of column 0 from the first row that sees it
    std::uint32_t count;  ///< of the rows that do

    FOVEA_DEVICE bool sees(int column) const {
      return static_cast<std::uint32_t>(offset + column) < count;
    }
  };
  FOVEA_DEVICE Sight sight_of(int tile, int r) const {
    const HopperKeys& t = task();
    const int key = key_of(r), first = key - t.above;
    const int behind = key + t.below + 1 < t.q_len ? key + t.below + 1 : t.q_len;
    const bool some = key < t.kv_len && first < behind;
    return {fresh(tile * kRows + 2 * quad() - first),
            some ? static_cast<std::uint32_t>(behind - first) : 0u};
  }

  // S to P, rounded.
  template <bool kPartial>
  FOVEA_DEVICE void weigh(int tile, const float (&lse)[kRows / 4]) {
    Sight sight[2];
    if constexpr (kPartial) sight[0] = sight_of(tile, 0), sight[1] = sight_of(tile, 1);
    FOVEA_UNROLL
    for (int n = 0; n < kRows / 8; ++n) {
      const float lse0 = lse[2 * n], lse1 = lse[2 * n + 1];
      FOVEA_UNROLL
      for (int r = 0; r < 2; ++r) {
        float p0 = exp2(fma(scores_[4 * n + 2 * r], args_.exponent_scale, -lse0));
        float p1 = exp2(fma(scores_[4 * n + 2 * r + 1], args_.exponent_scale, -lse1));
        if constexpr (kPartial) {
          if (!sight[r].sees(8 * n)) p0 = 0;
          if (!sight[r].sees(8 * n + 1)) p1 = 0;
        }
        weights_[2 * n + r] = pack<T>(p0, p1);
      }
    }
  }
  // dP to dS, rounded.
  template <bool kPartial>
  FOVEA_DEVICE void make_gradients(int tile, const float (&delta)[kRows / 4]) {
    Sight sight[2];
    if constexpr (kPartial) sight[0] = sight_of(tile, 0), sight[1] = sight_of(tile, 1);
    FOVEA_UNROLL
    for (int n = 0; n < kRows / 8; ++n) {
      const float delta0 = delta[2 * n], delta1 = delta[2 * n + 1];
      FOVEA_UNROLL
      for (int r = 0; r < 2; ++r) {
        const std::uint32_t p = weights_[2 * n + r];
        float ds0 = scores_[4 * n + 2 * r], ds1 = scores_[4 * n + 2 * r + 1];
        if constexpr (kPartial) ds0 *= of_row(kShare, 8 * n), ds1 *= of_row(kShare, 8 * n + 1);
        ds0 = widen<T>(static_cast<std::uint16_t>(p)) * (ds0 - delta0);
        ds1 = widen<T>(static_cast<std::uint16_t>(p >> 16)) * (ds1 - delta1);
        if constexpr (kPartial) {
          if (!sight[r].sees(8 * n)) ds0 = 0;
          if (!sight[r].sees(8 * n + 1)) ds1 = 0;
        }
        gradients_[2 * n + r] = pack<T>(ds0, ds1);
      }
    }
  }

  FOVEA_DEVICE bool must_go_by_element() const {
    if (!args_.check_values) return false;
    wait(L::kChecked + rows_at_.stage(), rows_at_.parity());
    const Words4 x = load_shared_16(found_.address(8 * rows_at_.stage()));
    return (x.w[0] | x.w[1] | x.w[2]) != 0;
  }

  // dS to shared memory, queries down; whether its dQ goes by element is told along.
  FOVEA_DEVICE void give_scores(bool by_element) {
    const int stage = scores_at_.stage();
    wait(L::kScoreEmpty + stage, scores_at_.parity() ^ 1);
    const std::uint32_t to = base_ + L::kScores + stage * S::kScoreBytes + group_ * kRows * 128;
    const int matrix = lane() >> 3, chunk = 2 * warp_in_group() + (matrix & 1);
    FOVEA_UNROLL
    for (int n = 0; n < kRows / 8; n += 2)
      store_matrices_transposed(swizzled(to, 8 * (n + (matrix >> 1)) + (lane() & 7), chunk),
                                gradients_[2 * n], gradients_[2 * n + 1], gradients_[2 * n + 2],
                                gradients_[2 * n + 3]);
    if (warp_in_group() == 0 && lane() == 0) found_[8 * stage + 4 + group_] = by_element ? 1 : 0;
    fence_async();
    this->arrive_by_warp(L::kScoreFull + stage);
    scores_at_.advance();
  }

  // dV and dK of pairs that see each other, by element.
  FOVEA_DEVICE void add_by_element(int tile) {
    const auto head_dim = static_cast<int>(args_.shape.head_dim);
    const auto v_head_dim = static_cast<int>(args_.shape.v_head_dim);
    FOVEA_ROLL
    for (int begin = tile * kRows; begin < (tile + 1) * kRows; begin += 4) {
      HopperPair pairs[2] = {};
      bool sees[2];
      FOVEA_UNROLL
      for (int r = 0; r < 2; ++r) {
        sees[r] = task().sees(begin + quad(), key_of(r));
        if (sees[r]) pairs[r] = this->pair_of(begin + quad(), key_of(r));
      }
      FOVEA_ROLL
      for (int n = 0; n < 4; ++n) {
        const int from = (lane() & ~3) | n;
        float p[2], ds[2];
        bool seen[2];
        FOVEA_UNROLL
        for (int r = 0; r < 2; ++r) {
          p[r] = shuffle(pairs[r].p, from);
          ds[r] = shuffle(pairs[r].ds, from);
          seen[r] = shuffle(sees[r] ? 1 : 0, from) != 0;
        }
        if (!any(seen[0] || seen[1])) continue;
        const T* q = this->query_at(begin + n);
        const T* dout = this->dout_at(begin + n);
        FOVEA_UNROLL
        for (int x = 0; x < kDepth / 2; ++x) {
          const int column = x / 4 * 8 + 2 * quad() + x % 2;
          if (!seen[x >> 1 & 1]) continue;
          if (column < v_head_dim) dv_[x] = fma(p[x >> 1 & 1], to_f32(dout[column]), dv_[x]);
          if (column < head_dim) dk_[x] = fma(ds[x >> 1 & 1], to_f32(q[column]), dk_[x]);
        }
      }
    }
  }

  // Sums to dK and dV.
  FOVEA_DEVICE void store() const {
    store_sums(dk_, args_.dk, args_.dk_sums, args_.score_scale,
               static_cast<int>(args_.shape.head_dim));
    store_sums(dv_, args_.dv, {}, 1, static_cast<int>(args_.shape.v_head_dim));
  }
  FOVEA_DEVICE void store_sums(const float (&sums)[kDepth / 2], const plain::Sink& sink,
                               const Sums& to, float factor, int columns) const {
    const HopperKeys& t = task();
    FOVEA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int key = key_of(r);
      if (key >= t.kv_capacity) continue;
      plain::Run<char*> run{};
      if (to.data != nullptr) {
        float* row = to.data + t.batch * to.batch + t.kv_head * to.head +
                     (static_cast<std::int64_t>(t.k_begin) + key) * to.row;
        run = {reinterpret_cast<char*>(row), plain::Element::f32, 0, 1, 1, 0};
      } else if (sink.segments.count > 0) {
        run = plain::run_at(sink.segments, {t.batch, t.kv_head, t.k_begin}, key, 1);
      }
      if (run.data == nullptr) continue;
      const int first = 2 * quad();
      store_row_pairs<typename S::Mode, kDepth / 8>(run, first, columns - first, [&](int n, int x) {
        return sums[4 * n + 2 * r + x] * factor;
      });
    }
  }

  const int group_;
  float scores_[kRows / 2];  ///< S, then dP
  float dk_[kDepth / 2], dv_[kDepth / 2];
  std::uint32_t weights_[kRows / 4], gradients_[kRows / 4];  ///< P^T, dS^T
};

/// The warpgroup that computes dQ.
template <class S>
class HopperQueryWorker : HopperBackwardWorker<S> {
  using Base = HopperBackwardWorker<S>;
  using L = HopperBackwardLayout<S>;
  using T = typename S::T;
  using Base::args_, Base::base_, Base::found_, Base::wait, Base::keys_, Base::scores_at_,
      Base::head_, Base::task, Base::field, Base::lane, Base::quad, Base::warp_in_group;
  static constexpr int kRows = S::kRows, kKeys = S::kKeys;
  static constexpr int kParts = kRows / 64 * S::kPanels;  ///< 64 rows and 64 columns each

 public:
  FOVEA_DEVICE explicit HopperQueryWorker(const HopperBackwardArgs& args) : Base(args) {}

  FOVEA_DEVICE void run() {
    while (this->next_task()) {
      this->for_heads([&] {
        const HopperKeys& t = task();
        first_row_ = t.batch * args_.dq.batch + head_ * args_.dq.head + t.q_begin;
        rows_ = t.q_len;
        FOVEA_ROLL
        for (int tile = field(&HopperKeys::begin); tile < field(&HopperKeys::end); ++tile)
          step(tile);
      });
      this->release_task();
    }
  }

 private:
  FOVEA_DEVICE void step(int tile) {
    const int stage = scores_at_.stage();
    wait(L::kScoreFull + stage, scores_at_.parity());
    const bool by_element =
        args_.check_values && shuffle(found_[8 * stage + 4] | found_[8 * stage + 5], 0) != 0;
    if (by_element) {
      release_scores();
      if (args_.dq.data != nullptr) add_by_element(tile);
    } else {
      add_products(tile);
    }
  }
  FOVEA_DEVICE void release_scores() {
    this->arrive_by_warp(L::kScoreEmpty + scores_at_.stage());
    scores_at_.advance();
  }

  FOVEA_DEVICE void add_products(int tile) {
    const MatrixAt a = MatrixAt::by_rows(base_ + L::kScores) + scores_at_.stage() * S::kScoreBytes;
    FOVEA_ROLL
    for (int part = 0; part < kParts; ++part) {
      const int block = part / S::kPanels, panel = part % S::kPanels;
      const MatrixAt b = MatrixAt::by_columns(base_ + L::kKeys, S::kKeyPanel) +
                         (keys_.stage() * S::kKeyBytes + panel * S::kKeyPanel);
      products_fence();
      FOVEA_UNROLL
      for (int i = 0; i < kKeys / 16; ++i) {
        const MatrixAt x = a + (block * 64 * 128 + i / 4 * kRows * 128 + i % 4 * 32);
        if (i == 0)
          Wgmma<64>::template shared_first<T, Lies::by_columns>(sums_, x, b);
        else
          Wgmma<64>::template shared<T, Lies::by_columns>(sums_, x, b + i * 2048, true);
      }
      products_commit();
      const Target target = target_of(tile, block);
      products_wait<0>();
      settle(sums_);
      if (part == kParts - 1) release_scores();
      add_to(target, panel * (64 / kWovenColumns), sums_);
    }
  }

  /// The lane's row r of 64.
  FOVEA_DEVICE int row_of_lane(int tile, int block, int r) const {
    return tile * kRows + block * 64 + warp_in_group() * 16 + lane() / 4 + 8 * r;
  }
  /// Where the lane adds to: its first row, null if nowhere, and whether it has the second.
  struct Target {
    float* row;
    bool both;
  };
  FOVEA_DEVICE Target target_of(int tile, int block) const {
    const int i = row_of_lane(tile, block, 0);
    if (args_.dq.data == nullptr || i >= rows_) return {nullptr, false};
    return {args_.dq.data + woven_row(first_row_ + i, args_.dq.width) + 4 * quad(), i + 8 < rows_};
  }
  /// Adds columns from 16 group on: two fragments of 8 columns to a group.
  template <int kCount>
  FOVEA_DEVICE void add_to(const Target& target, int group, const float (&sums)[kCount]) const {
    if (target.row == nullptr) return;
    const auto width = static_cast<int>(args_.dq.width);
    float* const first = target.row + group * kWovenStep;
    float* const second = first + kWovenRows * width;
    FOVEA_UNROLL
    for (int n = 0; n < kCount / 8; ++n) {
      const float *x = sums + 8 * n, *y = x + 4;
      if ((group + n) * kWovenColumns >= width) continue;
      add_four_to(first + n * kWovenStep, x[0], x[1], y[0], y[1]);
      if (target.both) add_four_to(second + n * kWovenStep, x[2], x[3], y[2], y[3]);
    }
  }

  // dQ of pairs that see each other, by element: few columns at a time, for few registers.
  FOVEA_DEVICE void add_by_element(int tile) {
    constexpr int kCount = 16, kColumns = 2 * kCount;
    FOVEA_ROLL
    for (int block = 0; block < kRows / 64; ++block) FOVEA_ROLL
    for (int first = 0; first < args_.dq.width; first += kColumns) {
      float sums[kCount] = {};
      FOVEA_ROLL
      for (int begin = task().first_key; begin < task().first_key + kKeys; begin += 4) {
        float ds_of[2] = {};
        bool sees[2];
        FOVEA_UNROLL
        for (int r = 0; r < 2; ++r) {
          const int i = row_of_lane(tile, block, r);
          sees[r] = task().sees(i, begin + quad());
          if (sees[r]) ds_of[r] = this->pair_of(i, begin + quad()).ds;
        }
        FOVEA_ROLL
        for (int n = 0; n < 4; ++n) {
          const int from = (lane() & ~3) | n;
          float ds[2];
          bool seen[2];
          FOVEA_UNROLL
          for (int r = 0; r < 2; ++r) {
            ds[r] = shuffle(ds_of[r], from);
            seen[r] = shuffle(sees[r] ? 1 : 0, from) != 0;
          }
          if (!any(seen[0] || seen[1])) continue;
          const T* k = this->key_at(begin + n);
          FOVEA_UNROLL
          for (int x = 0; x < kCount; ++x) {
            const int column = first + x / 4 * 8 + 2 * quad() + x % 2;
            if (seen[x >> 1 & 1] && column < args_.shape.head_dim)
              sums[x] = fma(ds[x >> 1 & 1], to_f32(k[column]), sums[x]);
          }
        }
      }
      add_to(target_of(tile, block), first / kWovenColumns, sums);
    }
  }

  std::int64_t first_row_ = 0;  ///< of the head's sums
  int rows_ = 0;
  float sums_[32];  ///< dQ of 64 rows and columns
};

template <class S>
FOVEA_DEVICE void hopper_backward(const HopperBackwardArgs& args) {
  using L = HopperBackwardLayout<S>;
  const int group = shuffle(warp() / 4, 0);
  if (thread_index() == 0) {
    const Shared<Mbarrier> barriers = shared_array<Mbarrier>(L::kBarriersAt, L::kBarriers);
    const int helpers = args.check_values ? L::kHelpers : 0;
    const auto init = [&](int first, int arrivals) {
      for (int n = first; n < first + L::kStages; ++n) barrier_init(barriers, n, arrivals);
    };
    init(L::kKeyFull, 1);
    init(L::kKeyEmpty, 12 + helpers);
    init(L::kQueryFull, 1);
    init(L::kDoutFull, 1);
    init(L::kRowsEmpty, 8 + helpers);
    init(L::kChecked, L::kHelpers);
    init(L::kScoreFull, 8);
    init(L::kScoreEmpty, 4);
    fence_barrier_init();
    fence_async();
  }
  barrier();
  if (group == 0) {
    keep_registers<S::kFeedRegisters>();
    if (warp() == 0)
      HopperBackwardProducer<S>(args).run();
    else if (args.check_values)
      HopperBackwardHelper<S>(args, warp() - 1).run();
  } else if (group < 3) {
    take_registers<S::kSumRegisters>();
    HopperKeyWorker<S>(args, group - 1).run();
  } else {
    keep_registers<S::kQueryRegisters>();
    HopperQueryWorker<S>(args).run();
  }
}

template <class S>
HopperBackwardVariant hopper_backward_variant() {
  return {entry_of<HopperBackwardArgs, S::kThreads, 1, hopper_backward<S>>("sm90_backward"),
          {S::kKeys, S::kRows, static_cast<std::size_t>(HopperBackwardLayout<S>::kBytes)}};
}

template <class Mode>
HopperBackwardVariant hopper_backward_of(std::int64_t head_dim) {
  if (head_dim <= 64) return hopper_backward_variant<HopperBackwardShape<Mode, 64>>();
  return hopper_backward_variant<HopperBackwardShape<Mode, 128>>();
}

}  // namespace fovea::cuda::FOVEA_WORLD
