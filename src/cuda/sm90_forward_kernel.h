// cuda.sm90.forward: attention on Hopper's warpgroup products, fed by its copy engine.
//
//   S = q k^T where visible, -inf elsewhere
//   P = exp2(c S - m);  l = rowsum P;  O = P V       c = scale log2(e)
//   out = O / (l [+ sink]),  lse = (m + log2 l) ln 2
//
//   q [batch, q_heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim],
//   v [batch, kv_heads, kv_len, v_head_dim] -> out [batch, q_heads, q_len, v_head_dim],
//   lse [batch, q_heads, q_len]; packed too
//
// A block stays on its multiprocessor and takes one tile of kRows query rows after the other. Its
// first warpgroup works for the others: one warp has Q, K and V of tiles copied to shared memory,
// in rings of stages (full, empty); three look at V where rows do not see all of it. Each of the
// others owns 64 rows, a warp 16, so that a row's softmax takes the four lanes that share it and P
// is the left operand of P V where it was made. Keys are walked from the last block to the first.
//
//   step j:  S = Q K[j], O += P[j + 1] V[j + 1] issued; wait for S; P[j] of it; wait for O
//
// While a warpgroup computes P the other's products run: they take turns (named barriers) in
// issuing.
//
// The maximum is stale: the first block of a tile sets m to its exact maximum; later blocks take
// none. P may be larger than 1, which changes nothing but the unit that P and l are in; when a
// lane's sum of P is large, the row goes over to another m by a power of two, and where P is not
// finite any more, S is computed again (mma.sync, the stage of K being still there) and a new
// maximum found. A row that has seen nothing has an m so low that its first score takes that way.
//
// A value that is not finite must reach the rows that see it and no others; 0 NaN would reach all.
// In blocks that some row does not see whole, warps of the first warpgroup replace such values by 0
// in shared memory, and tell so; who hears of it adds them by element at the end of the tile.
//
// Shared memory, D 128: Q 2 x 32 KB, K 2 x 32, V 2 x 32, O 32: 225 KB. D 64, two warpgroups: Q 2 x
// 16, K 3 x 16, V 3 x 16, O 16: 145 KB; three: Q 2 x 24, K 3 x 12, V 3 x 12, O 24: 145 KB.
// Registers: 40 or 32 for the first warpgroup, which spills some; D 128: S 64, O 64, P 32, Q 32 of
// 232, and 3 loads and 2 stores of spilled ones a step. D 64: two warpgroups S 64, O 32, P 32, Q 16
// of 232; three (Q stays in shared memory) S 48, O 32, P 24 of 160; neither spills.
//
// Serves: f16 and bf16, head_dim and v_head_dim to 128, bands, lengths, GQA, sinks; layouts that
// the copy engine can read.
#pragma once

#include "cuda/device/barrier.h"
#include "cuda/device/bulk.h"
#include "cuda/device/matrix.h"
#include "cuda/device/wgmma.h"
#include "cuda/sm80_scores.h"
#include "cuda/sm80_tiles.h"
#include "cuda/sm90_forward_feed.h"

namespace fovea::cuda::FOVEA_WORLD {

/// A warpgroup with 64 rows.
template <class S>
class HopperConsumer : HopperBlock<S> {
  using Block = HopperBlock<S>;
  using L = HopperLayout<S>;
  using T = typename S::T;
  using Block::args_, Block::base_, Block::barriers_, Block::found_, Block::tile, Block::wait;
  static constexpr int kKeys = S::kKeys, kDepth = S::kDepth;
  static constexpr int kSteps = kDepth / 16;
  /// A lane's sum of P over a block from which on m moves; P must fit T.
  static constexpr float kLarge = std::is_same_v<T, F16> ? 60000.0f : 1e9f;
  /// One from which on P itself may have been infinite.
  static constexpr float kTooLarge = 1e29f;
  /// m of a row that has seen nothing.
  static constexpr float kUnseen = -3e38f;

 public:
  FOVEA_DEVICE HopperConsumer(const HopperForwardArgs& args, int group)
      : Block(args), scale_(args.exponent_scale), group_(group) {}

  FOVEA_DEVICE void run() {
    if (S::kTurns && group_ == S::kGroups - 1) named_barrier_arrive(1, 256);
    if (!take_tile()) return;
    load_fragments();
    wait(L::kKeyFull + keys_.stage(), keys_.parity());
    begin_turn();
    products_fence();
    FOVEA_UNROLL
    for (int i = 0; i < kSteps; ++i) multiply_keys(i);
    products_commit();
    end_turn();
    begin_tile();
    do {
      // Blocks that not all rows see whole, those that they do, and again those that they do not.
      int j = field(&HopperTile::top) - 1;
      FOVEA_ROLL
      for (flags_ &= kPart - 1; flags_ < 3 * kPart; flags_ += kPart) {
        const auto part = static_cast<int>(flags_ / kPart);
        int stop = field(&HopperTile::low);
        if (part < 2) {
          const int inner =
              part == 0 ? field(&HopperTile::inner_end) : field(&HopperTile::inner_begin);
          stop = stop < inner ? inner : stop;
        }
        if (part == 1) {
          FOVEA_ROLL
          for (; j >= stop; --j) step<false>(j);
        } else {
          FOVEA_ROLL
          for (; j >= stop; --j) step<true>(j);
        }
      }
    } while (cross_over());
  }

 private:
  /// Of the tile; the same in all lanes.
  FOVEA_DEVICE int field(int HopperTile::*of) const { return shuffle(tile(number_).*of, 0); }
  /// Who the thread is, found out anew each time: what is computed from it would else be kept.
  FOVEA_DEVICE int lane() const { return fresh(thread_index()) & 31; }
  FOVEA_DEVICE int quad() const { return fresh(thread_index()) & 3; }
  FOVEA_DEVICE int warp_row() const { return (fresh(thread_index()) / 32 - 4) * 16; }
  FOVEA_DEVICE void release(int barrier) const {
    if ((thread_index() & 31) == 0) barrier_arrive(barriers_, barrier);
  }
  FOVEA_DEVICE void begin_turn() const {
    if constexpr (S::kTurns) named_barrier_sync(fresh(thread_index()) >> 7, 256);
  }
  FOVEA_DEVICE void end_turn() const {
    if constexpr (S::kTurns)
      named_barrier_arrive(S::kGroups == 2            ? 3 - (fresh(thread_index()) >> 7)
                           : group_ + 1 == S::kGroups ? 1
                                                      : 2 + group_,
                           256);
  }
  /// V of the block before the current K's: it has the stage before.
  FOVEA_DEVICE int value_stage() const { return keys_.before().stage(); }
  FOVEA_DEVICE bool has(std::uint32_t flag) const { return (flags_ & flag) != 0; }
  FOVEA_DEVICE void set(std::uint32_t flag, bool on) {
    flags_ = on ? flags_ | flag : flags_ & ~flag;
  }

  // Which rows come next. The stage of Q that they are in stays theirs until released.
  FOVEA_DEVICE bool take_tile() {
    wait(L::kQueryFull + (number_ & 1), number_ >> 1 & 1);
    return field(&HopperTile::row) >= 0;
  }
  FOVEA_DEVICE std::uint32_t query_tile() const {
    return base_ + L::kQueries + (number_ & 1) * S::kQueryBytes;
  }
  FOVEA_DEVICE void release_queries() const { release(L::kQueryEmpty + (number_ & 1)); }

  // Q of the warp's rows to registers.
  FOVEA_DEVICE void load_fragments() {
    if constexpr (S::kKeepQueries) {
      FOVEA_UNROLL
      for (int i = 0; i < kSteps; ++i) load_fragment(queries_[i], lane(), i);
    }
  }
  FOVEA_DEVICE void load_fragment(std::uint32_t (&to)[4], int lane, int i) const {
    load_matrices(to, swizzled(query_tile() + i / 4 * S::kQueryPanel, warp_row() + (lane & 15),
                               2 * (i & 3) + (lane >> 4)));
  }

  // S = Q K, columns 16 i to 16 i + 15 of both.
  FOVEA_DEVICE void multiply_keys(int i) {
    const MatrixAt k = MatrixAt::by_rows(base_ + L::kKeys) + keys_.stage() * S::kKeyBytes +
                       (i / 4 * S::kKeyPanel + i % 4 * 32);
    if constexpr (S::kKeepQueries) {
      if (i == 0)
        Wgmma<kKeys>::template registers_first<T, Lies::by_rows>(scores_, queries_[i], k);
      else
        Wgmma<kKeys>::template registers<T, Lies::by_rows>(scores_, queries_[i], k, true);
    } else {
      const MatrixAt q = MatrixAt::by_rows(base_ + L::kQueries + group_ * 64 * 128) +
                         (number_ & 1) * S::kQueryBytes + (i / 4 * S::kQueryPanel + i % 4 * 32);
      if (i == 0)
        Wgmma<kKeys>::template shared_first<T, Lies::by_rows>(scores_, q, k);
      else
        Wgmma<kKeys>::template shared<T, Lies::by_rows>(scores_, q, k, true);
    }
  }
  // O = [O +] P V.
  FOVEA_DEVICE void multiply_values() {
    const MatrixAt v =
        MatrixAt::by_columns(base_ + L::kValues, S::kKeyPanel) + value_stage() * S::kKeyBytes;
    FOVEA_UNROLL
    for (int i = 0; i < kKeys / 16; ++i)
      Wgmma<kDepth>::template registers<T, Lies::by_columns>(sums_, weights_ + 4 * i, v + i * 2048,
                                                             i > 0 || has(kSummed));
    products_commit();
  }
  FOVEA_DEVICE void wait_for_values() const {
    const auto values = keys_.before();
    // Full first: the stage's check before this one has ended then, which has the other parity.
    wait(L::kValueFull + values.stage(), values.parity());
    if (has(kChecked)) wait(L::kValueChecked + values.stage(), values.parity());
  }
  // All lanes have looked when they have met for the products.
  FOVEA_DEVICE void look_for_found() {
    if (!has(kChecked)) return;
    const Words4 x = load_shared_16(found_.address(4 * value_stage()));
    if ((x.w[0] | x.w[1] | x.w[2]) != 0) flags_ |= kFound;
  }

  // The first block of a tile: S is on its way.
  FOVEA_DEVICE void begin_tile() {
    products_wait<0>();
    settle(scores_);
    release(L::kKeyEmpty + keys_.stage());
    keys_.advance();
    const int top = field(&HopperTile::top);
    const bool partial =
        field(&HopperTile::inner_begin) > top || field(&HopperTile::inner_end) <= top;
    if (partial) hide(top);
    set(kChecked, partial && args_.check_values);
    find_maxima(maxima_[0], maxima_[1]);
    weigh(totals_[0], totals_[1]);
    flags_ &= ~(kSummed | kFound);
    pack_weights();
  }

  template <bool kPartial>
  FOVEA_DEVICE void step(int j) {
    wait(L::kKeyFull + keys_.stage(), keys_.parity());
    begin_turn();
    products_fence();
    FOVEA_UNROLL
    for (int i = 0; i < kSteps; ++i) multiply_keys(i);
    products_commit();
    wait_for_values();
    products_fence();
    multiply_values();
    end_turn();
    if (has(kStaged)) store_staged();
    products_wait<1>();
    settle(scores_);
    if constexpr (kPartial) hide(j);
    float sums[2], shrink[2];
    weigh(sums[0], sums[1]);
    // The branch also keeps the exponentials before the wait below.
    const bool large = any(sums[0] > kLarge || sums[1] > kLarge);
    if (large) move_maxima(j, kPartial, sums, shrink);
    totals_[0] += sums[0];
    totals_[1] += sums[1];
    release(L::kKeyEmpty + keys_.stage());
    look_for_found();
    products_wait<0>();
    settle(sums_);
    settle(weights_);
    flags_ |= kSummed;
    release(L::kValueEmpty + value_stage());
    keys_.advance();
    pack_weights();
    set(kChecked, kPartial && args_.check_values);
    if (large) {
      FOVEA_UNROLL
      for (int n = 0; n < kDepth / 2; ++n) sums_[n] *= shrink[n >> 1 & 1];
    }
  }

  // The end of a tile: its last P V, then the next tile's first S, with O going to shared memory
  // between its products. False if there is no other tile.
  FOVEA_DEVICE bool cross_over() {
    release_queries();
    ++number_;
    const bool more = take_tile();
    if (more) load_fragments();
    --number_;
    wait_for_values();
    begin_turn();
    products_fence();
    multiply_values();
    end_turn();
    if (has(kStaged)) store_staged();
    float shares[2];
    finish_rows(shares);
    if (more) wait(L::kKeyFull + keys_.stage(), keys_.parity());
    if (lane() == 0) bulk_wait<0>();  // the O before has left its place
    look_for_found();
    warp_barrier();
    products_wait<0>();
    settle(sums_);
    settle(weights_);
    release(L::kValueEmpty + value_stage());
    if (has(kFound)) add_non_finite();
    set(kStaged, stores_by_map());
    if (!has(kStaged)) store_rows(shares);
    ++number_;
    if (!more) {
      FOVEA_UNROLL
      for (int i = 0; i < kSteps; ++i) stage_out(i, shares);
      if (has(kStaged)) store_staged();
      if (lane() == 0) bulk_wait<0>();
      return false;
    }
    begin_turn();
    products_fence();
    FOVEA_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      multiply_keys(i);
      stage_out(i, shares);
    }
    products_commit();
    end_turn();
    begin_tile();
    return true;
  }

  /// Index in the sequence of the lane's row r.
  FOVEA_DEVICE int query_of(const HopperTile& t, int r) const {
    return t.row + warp_row() + 8 * r + lane() / 4;
  }

  // Hide what band and length do not let rows see.
  FOVEA_DEVICE void hide(int j) {
    const HopperTile& t = tile(number_);
    const int first = j * kKeys + 2 * quad();
    int begin[2], end[2];
    FOVEA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int i = query_of(t, r);
      const int behind = i + t.above + 1;
      begin[r] = i - t.below - first;
      end[r] = (behind < t.kv_len ? behind : t.kv_len) - first;
    }
    FOVEA_UNROLL
    for (int n = 0; n < kKeys / 2; ++n) {
      const int column = n / 4 * 8 + n % 2;
      if (column >= end[n >> 1 & 1]) scores_[n] = kNegativeInfinity;
    }
    if (!any(begin[0] + 2 * quad() > 0 || begin[1] + 2 * quad() > 0)) return;
    FOVEA_UNROLL
    for (int n = 0; n < kKeys / 2; ++n) {
      const int column = n / 4 * 8 + n % 2;
      if (column < begin[n >> 1 & 1]) scores_[n] = kNegativeInfinity;
    }
  }

  // The largest scores of the lane's two rows, in base 2. Not rounded: a row's only weight is to
  // be 1.
  FOVEA_DEVICE void find_maxima(float& x0, float& x1) const {
    x0 = max(scores_[0], scores_[1]);
    x1 = max(scores_[2], scores_[3]);
    FOVEA_UNROLL
    for (int n = 4; n < kKeys / 2; n += 4) {
      x0 = max(x0, max(scores_[n], scores_[n + 1]));
      x1 = max(x1, max(scores_[n + 2], scores_[n + 3]));
    }
    x0 = max(x0, shuffle_xor(x0, 1));
    x1 = max(x1, shuffle_xor(x1, 1));
    x0 = max(x0, shuffle_xor(x0, 2));
    x1 = max(x1, shuffle_xor(x1, 2));
    x0 = x0 == kNegativeInfinity ? kUnseen : multiply_up(x0, scale_);
    x1 = x1 == kNegativeInfinity ? kUnseen : multiply_up(x1, scale_);
  }

  // S to P, and its sums over the lane's columns. What a multiprocessor's warps read from registers
  // here, products wait for: both rows' m must come in turns of two, which is why sums are by
  // pairs.
  FOVEA_DEVICE void weigh(float& sum0, float& sum1) {
    sum0 = sum1 = 0;
    FOVEA_UNROLL
    for (int n = 0; n < kKeys / 2; ++n) {
      const bool lower = (n >> 1 & 1) != 0;
      scores_[n] = exp2(fma(scores_[n], scale_, lower ? -maxima_[1] : -maxima_[0]));
      if (n % 2 == 1) {
        const float pair = scores_[n - 1] + scores_[n];
        if (lower)
          sum1 += pair;
        else
          sum0 += pair;
      }
    }
  }
  FOVEA_DEVICE void pack_weights() {
    FOVEA_UNROLL
    for (int n = 0; n < kKeys / 4; ++n) weights_[n] = pack<T>(scores_[2 * n], scores_[2 * n + 1]);
  }

  // P has become large: another m. Seldom.
  FOVEA_DEVICE void move_maxima(int j, bool partial, float (&sums)[2], float (&shrink)[2]) {
    if (any(sums[0] > kTooLarge || sums[1] > kTooLarge)) {
      multiply_again();
      if (partial) hide(j);
      float x0, x1;
      find_maxima(x0, x1);
      x0 = max(x0, maxima_[0]);
      x1 = max(x1, maxima_[1]);
      shrink[0] = exp2(maxima_[0] - x0);
      shrink[1] = exp2(maxima_[1] - x1);
      maxima_[0] = x0;
      maxima_[1] = x1;
      weigh(sums[0], sums[1]);
    } else {
      FOVEA_UNROLL
      for (int r = 0; r < 2; ++r) {
        float x = max(sums[r], shuffle_xor(sums[r], 1));
        x = max(x, shuffle_xor(x, 2));
        const int exponent = static_cast<int>(float_to_bits(x) >> 23) - 126;
        const int by = exponent > 0 ? exponent : 0;
        shrink[r] = bits_to_float(static_cast<std::uint32_t>(127 - by) << 23);
        maxima_[r] += static_cast<float>(by);
        sums[r] *= shrink[r];
      }
      FOVEA_UNROLL
      for (int n = 0; n < kKeys / 2; ++n) scores_[n] *= shrink[n >> 1 & 1];
    }
    totals_[0] *= shrink[0];
    totals_[1] *= shrink[1];
  }
  /// S again, from the stage of K that has not been released; each warp for itself.
  FOVEA_DEVICE void multiply_again() {
    const int l = fresh(lane());
    const std::uint32_t k = base_ + L::kKeys + keys_.stage() * S::kKeyBytes;
    FOVEA_UNROLL
    for (int n = 0; n < kKeys / 2; ++n) scores_[n] = 0;
    FOVEA_ROLL
    for (int i = 0; i < kSteps; ++i) {
      std::uint32_t a[4];
      load_fragment(a, l, i);
      FOVEA_UNROLL
      for (int n = 0; n < kKeys / 8; n += 2) {
        std::uint32_t b[4];
        load_matrices(b, swizzled(k + i / 4 * S::kKeyPanel, 8 * n + (l >> 4) * 8 + (l & 7),
                                  2 * (i & 3) + (l >> 3 & 1)));
        add_product(n, a, b[0], b[1]);
        add_product(n + 1, a, b[2], b[3]);
      }
    }
  }
  FOVEA_DEVICE void add_product(int n, const std::uint32_t (&a)[4], std::uint32_t b0,
                                std::uint32_t b1) {
    float d[4] = {scores_[4 * n], scores_[4 * n + 1], scores_[4 * n + 2], scores_[4 * n + 3]};
    const std::uint32_t b[2] = {b0, b1};
    multiply<T>(d, a, b);
    FOVEA_UNROLL
    for (int x = 0; x < 4; ++x) scores_[4 * n + x] = d[x];
  }

  // Sums of weights to lse and to what O is multiplied by.
  FOVEA_DEVICE void finish_rows(float (&shares)[2]) const {
    const HopperTile& t = tile(number_);
    FOVEA_UNROLL
    for (int r = 0; r < 2; ++r) {
      float weight = totals_[r];
      weight += shuffle_xor(weight, 1);
      weight += shuffle_xor(weight, 2);
      const float sink = float_at(args_.scores.sinks, 0, t.head, kNegativeInfinity);
      const Total total = sum_up(maxima_[r] * kLn2, weight, sink);
      shares[r] = total.share;
      const int i = query_of(t, r);
      if (quad() == 0 && i < t.q_len && args_.lse.data != nullptr)
        args_.lse.data[t.batch * args_.lse.batch + t.head * args_.lse.head +
                       (static_cast<std::int64_t>(t.q_begin) + i) * args_.lse.row] = total.lse;
    }
  }

  /// Whether the warp's rows of out go there by the map: not rows of another sequence with them.
  FOVEA_DEVICE bool stores_by_map() const {
    if (!args_.out_mapped) return false;
    const HopperTile& t = tile(number_);
    return args_.lengths.cu_q.data == nullptr || t.row + warp_row() + 16 <= t.q_len;
  }
  FOVEA_DEVICE float out_of(int n, const float (&shares)[2]) const {
    const float share = shares[n >> 1 & 1];
    return share == 0 ? 0.0f : sums_[n] * share;
  }
  // Columns 16 i to 16 i + 15 of out to shared memory.
  FOVEA_DEVICE void stage_out(int i, const float (&shares)[2]) const {
    const std::uint32_t to = swizzled(base_ + L::kOut + i / 4 * S::kQueryPanel,
                                      warp_row() + (lane() & 15), 2 * (i & 3) + (lane() >> 4));
    const int n = 8 * i;
    store_matrices(to, pack<T>(out_of(n, shares), out_of(n + 1, shares)),
                   pack<T>(out_of(n + 2, shares), out_of(n + 3, shares)),
                   pack<T>(out_of(n + 4, shares), out_of(n + 5, shares)),
                   pack<T>(out_of(n + 6, shares), out_of(n + 7, shares)));
  }
  // Store what is staged, of the tile number_ - 1.
  FOVEA_DEVICE void store_staged() {
    fence_async();
    warp_barrier();
    if (lane() == 0) {
      const HopperTile& t = tile(number_ - 1);
      FOVEA_UNROLL
      for (int panel = 0; panel < S::kPanels; ++panel)
        store_box(args_.out_map, base_ + L::kOut + panel * S::kQueryPanel + warp_row() * 128,
                  {{64 * panel, t.q_begin + t.row + warp_row(), t.head * args_.out_steps.head,
                    t.batch * args_.out_steps.batch}});
      bulk_commit();
    }
    flags_ &= ~kStaged;
  }
  // Store out from registers: what no map can.
  FOVEA_DEVICE void store_rows(const float (&shares)[2]) const {
    const HopperTile& t = tile(number_);
    const int columns = static_cast<int>(args_.shape.v_head_dim);
    FOVEA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int i = query_of(t, r);
      if (i >= t.q_len) continue;
      const plain::Run<char*> to =
          plain::run_at(args_.out.segments, {t.batch, t.head, t.q_begin}, i, 1);
      FOVEA_UNROLL
      for (int n = 0; n < kDepth / 8; ++n) {
        const int column = 8 * n + 2 * quad();
        store_pair(to, column, columns - column, out_of(4 * n + 2 * r, shares),
                   out_of(4 * n + 2 * r + 1, shares));
      }
    }
  }

  // Add the values that were replaced by 0, to the rows that see them.
  FOVEA_DEVICE void add_non_finite() {
    const HopperTile& t = tile(number_);
    const plain::Place place{t.batch, t.kv_head, t.k_begin};
    const plain::Place queries{t.batch, t.head, t.q_begin};
    FOVEA_ROLL
    for (int j = t.low; j <= t.top; ++j) {
      if (!t.partial(j)) continue;
      const int end = (j + 1) * kKeys < t.kv_len ? (j + 1) * kKeys : t.kv_len;
      FOVEA_ROLL
      for (int key = j * kKeys; key < end; ++key) {
        const auto* v =
            reinterpret_cast<const T*>(plain::run_at(args_.v.segments, place, key, 1).data);
        const auto columns = static_cast<int>(args_.shape.v_head_dim);
        bool some = false;
        FOVEA_ROLL
        for (int column = lane(); column < columns; column += 32)
          some = some || !is_finite(to_f32(v[column]));
        if (!any(some)) continue;
        float weight[2];
        FOVEA_UNROLL
        for (int r = 0; r < 2; ++r) {
          const int i = query_of(t, r);
          const bool sees = i < t.q_len && i - t.below <= key && key <= i + t.above;
          weight[r] = sees ? weight_of(place, queries, i, key, maxima_[r]) : -1.0f;
        }
        FOVEA_UNROLL
        for (int n = 0; n < kDepth / 2; ++n) {
          const int column = n / 4 * 8 + 2 * quad() + n % 2;
          const float x = column < columns ? to_f32(v[column]) : 0.0f;
          if (weight[n >> 1 & 1] >= 0 && !is_finite(x)) sums_[n] += weight[n >> 1 & 1] * x;
        }
      }
    }
  }
  /// exp2(c q.k - m), once more.
  FOVEA_DEVICE float weight_of(const plain::Place& keys, const plain::Place& queries, int i,
                               int key, float maximum) const {
    const auto* q = reinterpret_cast<const T*>(plain::run_at(args_.q.segments, queries, i, 1).data);
    const auto* k = reinterpret_cast<const T*>(plain::run_at(args_.k.segments, keys, key, 1).data);
    float product = 0;
    FOVEA_ROLL
    for (int n = 0; n < static_cast<int>(args_.shape.head_dim); ++n)
      product = fma(to_f32(q[n]), to_f32(k[n]), product);
    return exp2(fma(product, scale_, -maximum));
  }

  const float scale_;
  const int group_;
  float scores_[kKeys / 2];
  float sums_[kDepth / 2];
  std::uint32_t weights_[kKeys / 4];
  std::uint32_t queries_[S::kKeepQueries ? kSteps : 1][4];
  float maxima_[2], totals_[2];  ///< m, l
  typename Block::template Place<S::kStages> keys_;
  int number_ = 0;  ///< of the tile
  /// In one register.
  static constexpr std::uint32_t kSummed = 1;   ///< O holds something
  static constexpr std::uint32_t kStaged = 2;   ///< out of the tile before is to be stored
  static constexpr std::uint32_t kChecked = 4;  ///< V that comes next is looked at first
  static constexpr std::uint32_t kFound = 8;    ///< values of the tile were replaced
  static constexpr std::uint32_t kPart = 16;    ///< counts the parts of a tile
  std::uint32_t flags_ = 0;
};

template <class S>
FOVEA_DEVICE void hopper_forward(const HopperForwardArgs& args) {
  using L = HopperLayout<S>;
  const int group = shuffle(warp() / 4, 0);
  if (thread_index() == 0) {
    const Shared<Mbarrier> barriers = shared_array<Mbarrier>(L::kBarriersAt, L::kBarriers);
    const int checkers = args.check_values ? L::kCheckers : 0;
    const auto init = [&](int first, int count, int arrivals) {
      for (int n = first; n < first + count; ++n) barrier_init(barriers, n, arrivals);
    };
    init(L::kQueryFull, L::kQueryStages, 1);
    init(L::kQueryEmpty, L::kQueryStages, 4 * S::kGroups + checkers);
    init(L::kKeyFull, S::kStages, 1);
    init(L::kKeyEmpty, S::kStages, 4 * S::kGroups);
    init(L::kValueFull, S::kStages, 1);
    init(L::kValueEmpty, S::kStages, 4 * S::kGroups + checkers);
    init(L::kValueChecked, S::kStages, L::kCheckers);
    fence_barrier_init();
    fence_async();
  }
  barrier();
  if (group == 0) {
    keep_registers<S::kProducerRegisters>();
    if (warp() == 0) {
      HopperProducer<S>(args).run();
    } else if (args.check_values) {
      HopperChecker<S>(args, warp() - 1).run();
    }
  } else {
    take_registers<S::kConsumerRegisters>();
    HopperConsumer<S>(args, group - 1).run();
  }
}

template <class S>
HopperForwardVariant hopper_variant_of() {
  return {entry_of<HopperForwardArgs, S::kThreads, 1, hopper_forward<S>>("sm90_forward"),
          {S::kRows, S::kKeys, S::kRows, 16, static_cast<std::size_t>(HopperLayout<S>::kBytes)}};
}

template <class Mode>
HopperForwardVariant hopper_forward_of(std::int64_t head_dim, bool banded) {
  if (head_dim <= 64)
    return banded ? hopper_variant_of<HopperShape<Mode, 64, 2, 128, 3, true, true>>()
                  : hopper_variant_of<HopperShape<Mode, 64, 3, 96, 3, false, true>>();
  return hopper_variant_of<HopperShape<Mode, 128, 2, 128, 2, true, true>>();
}

}  // namespace fovea::cuda::FOVEA_WORLD
