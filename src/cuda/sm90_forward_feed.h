// cuda.sm90.forward: what lies where in shared memory, and the warps that fill it: one that has
// boxes of Q, K and V copied, and three that take from V what would harm rows that do not see it.
// sm90_forward_kernel.h says how the whole works.
#pragma once

#include <type_traits>

#include "contract/float_types.h"
#include "contract/plain_rows.h"
#include "cuda/device/atomic.h"
#include "cuda/device/barrier.h"
#include "cuda/device/bulk.h"
#include "cuda/device/thread.h"
#include "cuda/sm90_forward.h"
#include "cuda/sm90_ring.h"
#include "cuda/warp_sequence.h"

namespace fovea::cuda::FOVEA_WORLD {

/// kDepth: columns of q, k, v in shared memory. kGroups: warpgroups that compute. kKeepQueries: Q
/// is held in registers. kTurns: warpgroups take turns in issuing products.
template <class Mode_, int kDepth_, int kGroups_, int kKeys_, int kStages_, bool kKeepQueries_,
          bool kTurns_>
struct HopperShape {
  using Mode = Mode_;
  using T = typename Mode::Element;
  static constexpr int kDepth = kDepth_, kGroups = kGroups_, kKeys = kKeys_, kStages = kStages_;
  static constexpr bool kKeepQueries = kKeepQueries_, kTurns = kTurns_;
  static constexpr int kRows = 64 * kGroups, kThreads = 128 * (kGroups + 1);
  static constexpr int kPanels = kDepth / 64;  ///< 64 columns, 128 bytes a row
  static constexpr int kQueryPanel = kRows * 128, kKeyPanel = kKeys * 128;
  static constexpr int kQueryBytes = kPanels * kQueryPanel, kKeyBytes = kPanels * kKeyPanel;
  static constexpr int kProducerRegisters = kGroups == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kGroups == 2 ? 232 : 160;
};

/// A tile of queries, the same for all threads. row: of the sequence; negative: there are no more
/// tiles. Blocks of keys top, top - 1, ... low; those in [inner_begin, inner_end) are seen by all
/// rows.
struct HopperTile {
  int row, q_len, q_begin, head, batch;
  int kv_len, k_begin, kv_head;
  int top, low, inner_begin, inner_end;
  int below, above;

  FOVEA_DEVICE bool partial(int block) const { return block < inner_begin || block >= inner_end; }
};

template <class S>
struct HopperLayout {
  static constexpr int kQueryStages = 2, kTiles = 4, kCheckers = 3;
  static constexpr int kQueries = 0;
  static constexpr int kKeys = kQueries + kQueryStages * S::kQueryBytes;
  static constexpr int kValues = kKeys + S::kStages * S::kKeyBytes;
  static constexpr int kOut = kValues + S::kStages * S::kKeyBytes;
  static constexpr int kBarriersAt = kOut + S::kQueryBytes;
  // Barriers by number.
  static constexpr int kQueryFull = 0, kQueryEmpty = kQueryFull + kQueryStages;
  static constexpr int kKeyFull = kQueryEmpty + kQueryStages, kKeyEmpty = kKeyFull + S::kStages;
  static constexpr int kValueFull = kKeyEmpty + S::kStages, kValueEmpty = kValueFull + S::kStages;
  static constexpr int kValueChecked = kValueEmpty + S::kStages;
  static constexpr int kBarriers = kValueChecked + S::kStages;
  static constexpr int kTilesAt = kBarriersAt + 8 * kBarriers;
  static constexpr int kFoundAt =
      (kTilesAt + kTiles * static_cast<int>(sizeof(HopperTile)) + 15) / 16 * 16;
  static constexpr int kBytes = kFoundAt + S::kStages * 16;
  static_assert(kBytes <= 227 * 1024);
};

/// What all threads of a block know.
template <class S>
class HopperBlock {
 protected:
  using L = HopperLayout<S>;
  static constexpr int kStages = S::kStages;

  FOVEA_DEVICE explicit HopperBlock(const HopperForwardArgs& args)
      : args_(args),
        base_(shared_array<char>(0, L::kBytes).address(0)),
        barriers_(shared_array<Mbarrier>(L::kBarriersAt, L::kBarriers)),
        tiles_(shared_array<HopperTile>(L::kTilesAt, L::kTiles)),
        found_(shared_array<int>(L::kFoundAt, 4 * S::kStages)) {}

  FOVEA_DEVICE void wait(int barrier, int parity, int line = __builtin_LINE()) const {
    barrier_wait(barriers_, barrier, parity, line);
  }
  FOVEA_DEVICE HopperTile& tile(int number) const { return tiles_[number % L::kTiles]; }

  template <int kCount>
  using Place = RingPlace<kCount>;

  const HopperForwardArgs& args_;
  const std::uint32_t base_;
  const Shared<Mbarrier> barriers_;
  const Shared<HopperTile> tiles_;
  const Shared<int> found_;
};

/// The warp that has everything copied: its first lane asks for it, all find the next tile.
template <class S>
class HopperProducer : HopperBlock<S> {
  using Block = HopperBlock<S>;
  using L = HopperLayout<S>;
  using Block::args_, Block::base_, Block::barriers_, Block::tile, Block::wait;

 public:
  FOVEA_DEVICE explicit HopperProducer(const HopperForwardArgs& args) : Block(args) {}

  FOVEA_DEVICE void run() {
    // Q of a tile is asked for while blocks of the one before are loaded; of the first, before all.
    bool live = false;
    int top = 0, low = 0;
    do {
      const bool some = number_ > 0;
      const HopperTile& t = tile(some ? number_ - 1 : 0);
      if (some) {
        top = t.top;
        low = t.low;
      }
      // Before the next load that waits for this tile's first products: its Q is free by then.
      constexpr int kBefore = S::kStages - 1;
      const int early = top - kBefore > low ? top - kBefore : low;
      FOVEA_ROLL
      for (int j = top; j >= low; --j) {
        if (some) {
          load_keys(t, j);
          if (j < top) load_values(t, j + 1);
        }
        if (j == early) live = load_queries();
      }
      if (some) load_values(t, low);
    } while (live);
  }

 private:
  // Load Q of the next tile that there is, and say which it is.
  FOVEA_DEVICE bool load_queries() {
    wait(L::kQueryEmpty + queries_.stage(), queries_.parity() ^ 1);
    HopperTile& t = tile(number_++);
    bool live = false;
    while (task_ < args_.tasks && !live) {
      live = place(task_, t);
      task_ = static_cast<int>(grid_blocks()) + (args_.drawn == nullptr ? task_ : draw());
    }
    const int full = L::kQueryFull + queries_.stage();
    if (lane() == 0) {
      if (live) {
        barrier_arrive_expecting(barriers_, full, S::kQueryBytes);
        const std::uint32_t to = base_ + L::kQueries + queries_.stage() * S::kQueryBytes;
        FOVEA_UNROLL
        for (int panel = 0; panel < S::kPanels; ++panel)
          load_box(to + panel * S::kQueryPanel, args_.q_map, barriers_, full,
                   {{64 * panel, t.q_begin + t.row, t.head * args_.q_steps.head,
                     t.batch * args_.q_steps.batch}},
                   Reuse::once);
      } else {
        t.row = -1;
        barrier_arrive(barriers_, full);
      }
    }
    warp_barrier();
    queries_.advance();
    return live;
  }
  /// How many tasks have been drawn before.
  FOVEA_DEVICE int draw() const {
    return shuffle(lane() == 0 ? static_cast<int>(atomic_add(args_.drawn, 1u)) : 0, 0);
  }

  FOVEA_DEVICE void load_keys(const HopperTile& t, int block) {
    load(args_.k_map, L::kKeys, L::kKeyFull, L::kKeyEmpty, keys_,
         {{0, t.k_begin, t.kv_head * args_.k_steps.head, t.batch * args_.k_steps.batch}}, block);
  }
  FOVEA_DEVICE void load_values(const HopperTile& t, int block) {
    load(args_.v_map, L::kValues, L::kValueFull, L::kValueEmpty, values_,
         {{0, t.k_begin, t.kv_head * args_.v_steps.head, t.batch * args_.v_steps.batch}}, block);
  }
  FOVEA_DEVICE void load(const TensorMap& map, int ring, int full, int empty,
                         typename Block::template Place<S::kStages>& place, BoxAt from, int block) {
    wait(empty + place.stage(), place.parity() ^ 1);
    if (lane() == 0) {
      barrier_arrive_expecting(barriers_, full + place.stage(), S::kKeyBytes);
      const std::uint32_t to = base_ + ring + place.stage() * S::kKeyBytes;
      from.at[1] += block * S::kKeys;
      FOVEA_UNROLL
      for (int panel = 0; panel < S::kPanels; ++panel) {
        from.at[0] = 64 * panel;
        load_box(to + panel * S::kKeyPanel, map, barriers_, full + place.stage(), from,
                 Reuse::often);
      }
    }
    warp_barrier();  // no lane may miss a phase
    place.advance();
  }

  // Which rows and keys a task is of; false if its sequence has no such rows.
  FOVEA_DEVICE bool place(int task, HopperTile& shared) const {
    HopperTile to;
    const int heads = static_cast<int>(args_.shape.q_heads), tiles = args_.row_tiles;
    int row_tile, head;
    if (args_.section_heads > 0) {
      const int section = task / (args_.section_heads * tiles);
      const int first = section * args_.section_heads;
      const int left = heads * static_cast<int>(args_.shape.batch) - first;
      const int width = left < args_.section_heads ? left : args_.section_heads;
      const int within = task - first * tiles;
      row_tile = tiles - 1 - within / width;
      head = first + within % width;
    } else {
      head = task / tiles;
      row_tile = task - head * tiles;
    }
    to.batch = head / heads;
    to.head = head - to.batch * heads;
    to.kv_head = to.head / static_cast<int>(args_.shape.q_heads / args_.shape.kv_heads);
    const plain::Sequence s = sequence_by_warp(args_.shape, args_.lengths, to.batch);
    const std::int64_t row = static_cast<std::int64_t>(row_tile) * S::kRows;
    if (row >= s.q_len) return false;
    to.row = static_cast<int>(row);
    to.q_len = static_cast<int>(s.q_len);
    to.q_begin = static_cast<int>(s.q_begin);
    to.kv_len = static_cast<int>(s.kv_len);
    to.k_begin = static_cast<int>(s.k_begin);

    const plain::Band band = plain::band_of(args_.band, s);
    constexpr std::int64_t kFar = std::int64_t{1} << 29;  // beyond every length that is served
    to.below = static_cast<int>(plain::clamp(band.below, -kFar, kFar));
    to.above = static_cast<int>(plain::clamp(band.above, -kFar, kFar));
    const int last = static_cast<int>(plain::lesser(row + S::kRows, s.q_len)) - 1;
    const auto clip = [&](int key) { return key < 0 ? 0 : key < to.kv_len ? key : to.kv_len; };
    const int begin = clip(to.row - to.below), end = clip(last + to.above + 1);
    const int inner_begin = clip(last - to.below), inner_end = clip(to.row + to.above + 1);
    // A tile that sees no keys looks at one block of them all the same.
    const bool some = begin < end;
    to.low = some ? begin / S::kKeys : 0;
    to.top = some ? (end - 1) / S::kKeys : 0;
    to.inner_begin = some ? (inner_begin + S::kKeys - 1) / S::kKeys : 0;
    to.inner_end = some ? inner_end / S::kKeys : 0;
    if (lane() == 0) shared = to;
    warp_barrier();
    return true;
  }

  typename Block::template Place<2> queries_;
  typename Block::template Place<S::kStages> keys_, values_;
  int task_ = static_cast<int>(block_index());
  int number_ = 0;  ///< of the next tile
};

/// Three warps that see to it that hidden values do no harm.
template <class S>
class HopperChecker : HopperBlock<S> {
  using Block = HopperBlock<S>;
  using L = HopperLayout<S>;
  using Block::args_, Block::base_, Block::barriers_, Block::found_, Block::tile, Block::wait;

 public:
  FOVEA_DEVICE HopperChecker(const HopperForwardArgs& args, int number)
      : Block(args), number_(number) {}

  FOVEA_DEVICE void run() {
    typename Block::template Place<2> queries;
    typename Block::template Place<S::kStages> values;
    for (int n = 0;; ++n) {
      wait(L::kQueryFull + queries.stage(), queries.parity());
      const HopperTile t = tile(n);
      if (t.row < 0) return;
      FOVEA_ROLL
      for (int j = t.top; j >= t.low; --j) {
        wait(L::kValueFull + values.stage(), values.parity());
        if (t.partial(j)) {
          const bool found = any(clean(base_ + L::kValues + values.stage() * S::kKeyBytes));
          if (found) fence_async();
          if (lane() == 0) found_[4 * values.stage() + number_] = found ? 1 : 0;
        }
        warp_barrier();
        if (lane() == 0) {
          barrier_arrive(barriers_, L::kValueChecked + values.stage());
          barrier_arrive(barriers_, L::kValueEmpty + values.stage());
        }
        values.advance();
      }
      warp_barrier();
      if (lane() == 0) barrier_arrive(barriers_, L::kQueryEmpty + queries.stage());
      queries.advance();
    }
  }

 private:
  /// Replaces what is not finite by 0 in the warp's share of a tile; whether there was something.
  FOVEA_DEVICE bool clean(std::uint32_t at) const {
    constexpr std::uint32_t kExponent = std::is_same_v<typename S::T, Bf16> ? 0x7F80u : 0x7C00u;
    constexpr std::uint32_t kBoth = kExponent | kExponent << 16;
    constexpr std::uint32_t kOne = kBoth & ~(kBoth << 1), kSign = kBoth + kOne;
    constexpr int kChunks = S::kKeyBytes / 16;
    std::uint32_t found = 0;
    FOVEA_ROLL
    for (int n = number_ * 32 + lane(); n < kChunks; n += 32 * L::kCheckers) {
      const Words4 x = load_shared_16(at + 16 * n);
      std::uint32_t here = 0;
      FOVEA_UNROLL
      for (int k = 0; k < 4; ++k) here |= (x.w[k] & kBoth) + kOne;
      found |= here;
      if ((here & kSign) == 0) continue;
      Words4 y = x;
      FOVEA_UNROLL
      for (int k = 0; k < 4; ++k) {
        if ((x.w[k] & kExponent) == kExponent) y.w[k] &= 0xFFFF0000u;
        if ((x.w[k] >> 16 & kExponent) == kExponent) y.w[k] &= 0xFFFFu;
      }
      store_shared_16(at + 16 * n, y);
    }
    return (found & kSign) != 0;
  }

  const int number_;
};

}  // namespace fovea::cuda::FOVEA_WORLD
