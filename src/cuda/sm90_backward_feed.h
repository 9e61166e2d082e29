// cuda.sm90.backward: what lies where in shared memory, and the warps that fill it: one that has
// boxes of K, V, Q and dO copied, and three that look for values that are not finite.
// sm90_backward_kernel.h says how the whole works.
#pragma once

#include <type_traits>

#include "contract/float_types.h"
#include "contract/plain_rows.h"
#include "cuda/device/atomic.h"
#include "cuda/device/barrier.h"
#include "cuda/device/bulk.h"
#include "cuda/device/numbers.h"
#include "cuda/device/thread.h"
#include "cuda/sm90_backward.h"
#include "cuda/sm90_ring.h"
#include "cuda/warp_sequence.h"

namespace fovea::cuda::FOVEA_WORLD {

/// kDepth: columns of q, k, v and dout in shared memory.
template <class Mode_, int kDepth_>
struct HopperBackwardShape {
  using Mode = Mode_;
  using T = typename Mode::Element;
  static constexpr int kDepth = kDepth_, kKeys = 128, kHalf = 64, kThreads = 512;
  static constexpr int kRows = kDepth == 64 ? 128 : 64;
  static constexpr int kStages = 2;            ///< of K and V, of Q and dO, of dS
  static constexpr int kPanels = kDepth / 64;  ///< 64 columns, 128 bytes a row
  static constexpr int kKeyPanel = kKeys * 128, kRowPanel = kRows * 128;
  static constexpr int kKeyBytes = kPanels * kKeyPanel, kRowBytes = kPanels * kRowPanel;
  static constexpr int kScoreBytes = kRows * kKeys * 2;
  static constexpr int kFeedRegisters = 24, kSumRegisters = 208, kQueryRegisters = 72;
};

/// Which tiles of queries see some of 64 keys: from at[0] to at[3], and from at[1] to at[2] all
/// rows see all keys. In rising order.
struct HopperHalf {
  int at[4];

  FOVEA_DEVICE bool partial(int tile) const {
    return (tile >= at[0] && tile < at[1]) || (tile >= at[2] && tile < at[3]);
  }
  FOVEA_DEVICE bool some_partial() const { return at[0] < at[1] || at[2] < at[3]; }
};

/// A tile of keys and the queries that see some of it, the same for all threads: tiles of queries
/// [begin, end). live: 0: there are no more.
struct HopperKeys {
  int live, batch, kv_head, first_key, kv_len, kv_capacity, k_begin;
  int q_begin, q_len;
  int begin, end;
  int below, above;
  HopperHalf halves[2];  ///< of the keys, of 64

  FOVEA_DEVICE bool partial(int tile) const {
    return halves[0].partial(tile) || halves[1].partial(tile);
  }
  FOVEA_DEVICE bool some_partial() const {
    return halves[0].some_partial() || halves[1].some_partial();
  }
  FOVEA_DEVICE bool sees(int row, int key) const {
    return row < q_len && key < kv_len && row - below <= key && key <= row + above;
  }
  /// Whether a row sees a single key.
  FOVEA_DEVICE bool sees_one(int row) const {
    const int first = row - below > 0 ? row - below : 0;
    const int behind = row + above + 1 < kv_len ? row + above + 1 : kv_len;
    return behind - first == 1;
  }
};

template <class S>
struct HopperBackwardLayout {
  static constexpr int kStages = S::kStages, kHelpers = 3;
  static constexpr int kKeys = 0;
  static constexpr int kValues = kKeys + kStages * S::kKeyBytes;
  static constexpr int kQueries = kValues + kStages * S::kKeyBytes;
  static constexpr int kDouts = kQueries + kStages * S::kRowBytes;
  static constexpr int kScores = kDouts + kStages * S::kRowBytes;
  /// Of a stage of Q: tiles of its rows.
  static constexpr int kRowsAt = kScores + kStages * S::kScoreBytes;
  static constexpr int kOfRows = S::kRows / kPrepareRows * RowTiles::kFloats;
  static constexpr int kBarriersAt = kRowsAt + kStages * kOfRows * 4;
  // Barriers by number.
  static constexpr int kKeyFull = 0, kKeyEmpty = kKeyFull + kStages;
  static constexpr int kQueryFull = kKeyEmpty + kStages, kDoutFull = kQueryFull + kStages;
  static constexpr int kRowsEmpty = kDoutFull + kStages, kChecked = kRowsEmpty + kStages;
  static constexpr int kScoreFull = kChecked + kStages, kScoreEmpty = kScoreFull + kStages;
  static constexpr int kBarriers = kScoreEmpty + kStages;
  static constexpr int kTasksAt = kBarriersAt + 8 * kBarriers;
  static constexpr int kFoundAt =
      (kTasksAt + kStages * static_cast<int>(sizeof(HopperKeys)) + 15) / 16 * 16;
  /// Of a stage of Q: a word for each helper; of one of dS, from the fifth on: one for each half.
  static constexpr int kBytes = kFoundAt + kStages * 2 * 16;
  static_assert(kBytes <= 227 * 1024);
};

/// What all threads of a block know.
template <class S>
class HopperBackwardBlock {
 protected:
  using L = HopperBackwardLayout<S>;
  static constexpr int kStages = S::kStages;
  using Place = RingPlace<kStages>;

  FOVEA_DEVICE explicit HopperBackwardBlock(const HopperBackwardArgs& args)
      : args_(args),
        base_(shared_array<char>(0, L::kBytes).address(0)),
        barriers_(shared_array<Mbarrier>(L::kBarriersAt, L::kBarriers)),
        tasks_(shared_array<HopperKeys>(L::kTasksAt, kStages)),
        rows_(shared_array<float>(L::kRowsAt, kStages * L::kOfRows)),
        found_(shared_array<int>(L::kFoundAt, kStages * 8)) {}

  FOVEA_DEVICE void wait(int barrier, int parity, int line = __builtin_LINE()) const {
    barrier_wait(barriers_, barrier, parity, line);
  }
  FOVEA_DEVICE void arrive(int barrier) const { barrier_arrive(barriers_, barrier); }
  /// Of all lanes of the warp.
  FOVEA_DEVICE void arrive_by_warp(int barrier) const {
    warp_barrier();
    if ((thread_index() & 31) == 0) arrive(barrier);
  }
  FOVEA_DEVICE int group() const {
    return static_cast<int>(args_.shape.q_heads / args_.shape.kv_heads);
  }

  FOVEA_DEVICE bool has_sink(int head) const {
    return float_at(args_.sinks, 0, head, kNegativeInfinity) != kNegativeInfinity;
  }

  const HopperBackwardArgs& args_;
  const std::uint32_t base_;
  const Shared<Mbarrier> barriers_;
  const Shared<HopperKeys> tasks_;
  const Shared<float> rows_;
  const Shared<int> found_;
};

/// The warp that has everything copied: its first lane asks for it, all find the next task.
template <class S>
class HopperBackwardProducer : HopperBackwardBlock<S> {
  using Block = HopperBackwardBlock<S>;
  using L = HopperBackwardLayout<S>;
  using Block::args_, Block::base_, Block::barriers_, Block::tasks_, Block::rows_, Block::wait,
      Block::arrive, Block::group;

 public:
  FOVEA_DEVICE explicit HopperBackwardProducer(const HopperBackwardArgs& args) : Block(args) {}

  FOVEA_DEVICE void run() {
    auto task = static_cast<int>(block_index());
    FOVEA_ROLL
    for (; task < args_.tasks; task = next(task)) {
      wait(L::kKeyEmpty + keys_.stage(), keys_.parity() ^ 1);
      HopperKeys& t = tasks_[keys_.stage()];
      if (!place(task, t)) continue;
      load_keys(t);
      const int heads = group();
      FOVEA_ROLL
      for (int g = 0; g < heads; ++g) FOVEA_ROLL
      for (int tile = t.begin; tile < t.end; ++tile) load_rows(t, t.kv_head * heads + g, tile);
      keys_.advance();
    }
    wait(L::kKeyEmpty + keys_.stage(), keys_.parity() ^ 1);
    if (lane() == 0) {
      tasks_[keys_.stage()].live = 0;
      arrive(L::kKeyFull + keys_.stage());
    }
  }

 private:
  FOVEA_DEVICE int next(int task) const {
    const auto blocks = static_cast<int>(grid_blocks());
    if (args_.drawn == nullptr) return task + blocks;
    return blocks + shuffle(lane() == 0 ? static_cast<int>(atomic_add(args_.drawn, 1u)) : 0, 0);
  }

  FOVEA_DEVICE void load_keys(const HopperKeys& t) const {
    if (lane() == 0) {
      const int stage = keys_.stage(), full = L::kKeyFull + stage;
      const int row = t.k_begin + t.first_key;
      barrier_arrive_expecting(barriers_, full, 2 * S::kKeyBytes);
      load<S::kKeyPanel>(L::kKeys + stage * S::kKeyBytes, args_.k_map, full,
                         {{0, row, t.kv_head * args_.k_steps.head, t.batch * args_.k_steps.batch}},
                         Reuse::once);
      load<S::kKeyPanel>(L::kValues + stage * S::kKeyBytes, args_.v_map, full,
                         {{0, row, t.kv_head * args_.v_steps.head, t.batch * args_.v_steps.batch}},
                         Reuse::once);
    }
    warp_barrier();
  }
  FOVEA_DEVICE void load_rows(const HopperKeys& t, int head, int tile) {
    const int stage = rows_at_.stage();
    wait(L::kRowsEmpty + stage, rows_at_.parity() ^ 1);
    if (lane() == 0) {
      const int row = t.q_begin + tile * S::kRows;
      barrier_arrive_expecting(barriers_, L::kQueryFull + stage, S::kRowBytes + L::kOfRows * 4);
      bulk_load(rows_, stage * L::kOfRows,
                args_.row_tiles.at({t.batch, head, t.q_begin}, tile * (S::kRows / kPrepareRows)),
                L::kOfRows, barriers_, L::kQueryFull + stage);
      load<S::kRowPanel>(L::kQueries + stage * S::kRowBytes, args_.q_map, L::kQueryFull + stage,
                         {{0, row, head * args_.q_steps.head, t.batch * args_.q_steps.batch}},
                         Reuse::often);
      barrier_arrive_expecting(barriers_, L::kDoutFull + stage, S::kRowBytes);
      load<S::kRowPanel>(L::kDouts + stage * S::kRowBytes, args_.dout_map, L::kDoutFull + stage,
                         {{0, row, head * args_.dout_steps.head, t.batch * args_.dout_steps.batch}},
                         Reuse::often);
    }
    warp_barrier();  // no lane may miss a phase
    rows_at_.advance();
  }
  template <int kPanelBytes>
  FOVEA_DEVICE void load(int to, const TensorMap& map, int full, BoxAt from, Reuse reuse) const {
    FOVEA_UNROLL
    for (int panel = 0; panel < S::kPanels; ++panel) {
      from.at[0] = 64 * panel;
      load_box(base_ + to + panel * kPanelBytes, map, barriers_, full, from, reuse);
    }
  }

  // Which keys a task is of; false if its sequence has no such rows.
  FOVEA_DEVICE bool place(int task, HopperKeys& shared) const {
    HopperKeys to;
    const int heads = static_cast<int>(args_.shape.kv_heads), tiles = args_.key_tiles;
    int key_tile, head;
    if (args_.section_heads > 0) {
      const int first = task / (args_.section_heads * tiles) * args_.section_heads;
      const int left = heads * static_cast<int>(args_.shape.batch) - first;
      const int width = left < args_.section_heads ? left : args_.section_heads;
      const int within = task - first * tiles;
      key_tile = within / width;
      head = first + within % width;
    } else {
      head = task / tiles;
      key_tile = task - head * tiles;
    }
    const std::int64_t key = static_cast<std::int64_t>(key_tile) * S::kKeys;
    to.live = 1;
    to.batch = head / heads;
    to.kv_head = head - to.batch * heads;
    const plain::Sequence s = sequence_by_warp(args_.shape, args_.lengths, to.batch);
    if (key >= s.kv_capacity) return false;
    to.first_key = static_cast<int>(key);
    to.kv_len = static_cast<int>(s.kv_len);
    to.kv_capacity = static_cast<int>(s.kv_capacity);
    to.k_begin = static_cast<int>(s.k_begin);
    to.q_begin = static_cast<int>(s.q_begin);
    to.q_len = static_cast<int>(s.q_len);

    const plain::Band band = plain::band_of(args_.band, s);
    constexpr std::int64_t kFar = std::int64_t{1} << 29;  // beyond every length that is served
    to.below = static_cast<int>(plain::clamp(band.below, -kFar, kFar));
    to.above = static_cast<int>(plain::clamp(band.above, -kFar, kFar));
    const auto clip = [&](int row) { return row < 0 ? 0 : row < to.q_len ? row : to.q_len; };
    to.begin = to.q_len;
    to.end = 0;
    FOVEA_UNROLL
    for (int n = 0; n < 2; ++n) {
      int(&at)[4] = to.halves[n].at;
      const int first = to.first_key + n * S::kHalf;
      const int behind = first + S::kHalf < to.kv_len ? first + S::kHalf : to.kv_len;
      const int begin = clip(first - to.above), end = clip(behind + to.below);
      const bool some = first < behind && begin < end, whole = behind - first == S::kHalf;
      const auto within = [&](int tile) {
        return tile < at[0] ? at[0] : tile < at[3] ? tile : at[3];
      };
      at[0] = some ? begin / S::kRows : 0;
      at[3] = some ? (end - 1) / S::kRows + 1 : 0;
      at[1] = within(whole ? (clip(behind - 1 - to.above) + S::kRows - 1) / S::kRows : at[3]);
      at[2] = within(whole ? clip(first + to.below + 1) / S::kRows : at[3]);
      if (at[2] < at[1]) at[2] = at[1];
      if (some && at[0] < to.begin) to.begin = at[0];
      if (at[3] > to.end) to.end = at[3];
    }
    if (to.end == 0) to.begin = 0;
    if (lane() == 0) shared = to;
    warp_barrier();
    return true;
  }

  typename Block::Place keys_, rows_at_;
};

/// Three warps that look, in tiles that not all rows see whole, for values that are not finite.
template <class S>
class HopperBackwardHelper : HopperBackwardBlock<S> {
  using Block = HopperBackwardBlock<S>;
  using L = HopperBackwardLayout<S>;
  using Block::base_, Block::tasks_, Block::found_, Block::wait, Block::arrive_by_warp,
      Block::group;

 public:
  FOVEA_DEVICE HopperBackwardHelper(const HopperBackwardArgs& args, int number)
      : Block(args), number_(number) {}

  FOVEA_DEVICE void run() {
    typename Block::Place keys, rows;
    while (true) {
      wait(L::kKeyFull + keys.stage(), keys.parity());
      const HopperKeys& t = tasks_[keys.stage()];
      if (t.live == 0) return;
      const bool bad_keys =
          t.some_partial() &&
          holds_non_finite(base_ + L::kKeys + keys.stage() * S::kKeyBytes, S::kKeyBytes);
      const int heads = group();
      FOVEA_ROLL
      for (int g = 0; g < heads; ++g) FOVEA_ROLL
      for (int tile = t.begin; tile < t.end; ++tile) {
        wait(L::kQueryFull + rows.stage(), rows.parity());
        wait(L::kDoutFull + rows.stage(), rows.parity());
        if (t.partial(tile)) {
          const std::uint32_t at = rows.stage() * S::kRowBytes;
          const bool bad = holds_non_finite(base_ + L::kQueries + at, S::kRowBytes);
          const bool bad_douts = holds_non_finite(base_ + L::kDouts + at, S::kRowBytes);
          if (lane() == 0) found_[8 * rows.stage() + number_] = bad || bad_douts || bad_keys;
        }
        arrive_by_warp(L::kChecked + rows.stage());
        arrive_by_warp(L::kRowsEmpty + rows.stage());
        rows.advance();
      }
      arrive_by_warp(L::kKeyEmpty + keys.stage());
      keys.advance();
    }
  }

 private:
  /// Whether the warp's share of a tile holds NaN or infinity.
  FOVEA_DEVICE bool holds_non_finite(std::uint32_t at, int bytes) const {
    constexpr std::uint32_t kExponent = std::is_same_v<typename S::T, Bf16> ? 0x7F80u : 0x7C00u;
    constexpr std::uint32_t kBoth = kExponent | kExponent << 16;
    constexpr std::uint32_t kOne = kBoth & ~(kBoth << 1), kSign = kBoth + kOne;
    std::uint32_t found = 0;
    FOVEA_ROLL
    for (int n = number_ * 32 + lane(); n < bytes / 16; n += 32 * L::kHelpers) {
      const Words4 x = load_shared_16(at + 16 * n);
      FOVEA_UNROLL
      for (int k = 0; k < 4; ++k) found |= (x.w[k] & kBoth) + kOne;
    }
    return any((found & kSign) != 0);
  }

  const int number_;
};

}  // namespace fovea::cuda::FOVEA_WORLD
