// What the flash kernels are called with: plain data, shared by the files that are compiled for one
// instruction set and by flash_kernels.cpp, which is compiled for every machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fovea::cpu {

/// Queries of a panel: what stands side by side in a tile of scores.
inline constexpr std::int64_t kPanel = 64;
/// From one row of a tile of scores to the next: no power of two, so that the elements of a column
/// fall into different sets of the L1 cache.
inline constexpr std::int64_t kScoresRow = 80;
/// Keys of a tile in forward: 16 register tiles high; K^, V and scores of a tile fit the L1 cache
/// two at a time.
inline constexpr std::int64_t kForwardKeys = 96;
/// Most queries of a task in forward.
inline constexpr std::int64_t kForwardMaxRows = 512;
/// Queries of a tile in backward, and the most keys of one.
inline constexpr std::int64_t kBackwardRows = 96;
inline constexpr std::int64_t kBackwardMaxKeys = 256;
/// Floats between the rows of dS in backward, which keep them out of the same sets of the L1 cache.
inline constexpr std::int64_t kBackwardGap = 16;
/// Widths of packed operands are rounded up to this, a multiple of every vector length.
inline constexpr std::int64_t kPadding = 64;

/// A tensor [batch, heads, rows, columns]; strides in elements.
template <class Pointer>
struct Strided {
  Pointer data = nullptr;
  std::int64_t batch = 0, head = 0, row = 0, column = 0;
};
using Input = Strided<const float*>;
using Output = Strided<float*>;

struct Shape {
  std::int64_t batch, q_heads, kv_heads, q_len, kv_len, head_dim, v_head_dim;
};

/// Row i sees keys j with i - below <= j <= i + above; INT64_MAX = no limit.
struct BandLimits {
  std::int64_t below, above;
};

/// Each worker's scratch: where its arrays begin, in floats.
struct ForwardScratch {
  std::int64_t queries;  ///< [panels, tile columns, head_dim, within], see tile_pack.h
  std::int64_t sums;     ///< O [rows, v_head_dim padded]
  std::int64_t scores;   ///< S, then P [kForwardKeys, kScoresRow]
  std::int64_t values;   ///< V [v_head_dim padded / tile columns, kForwardKeys, tile columns]
  std::int64_t keys;     ///< K [kForwardKeys, head_dim], only if its columns are strided
  std::int64_t maxima, weights, rescale;  ///< [rows]
  std::int64_t floats;                    ///< all of it
};

/// What every phase of every dense f32 kernel is told.
struct DenseArgs {
  Shape shape;
  BandLimits band;
  double scale;
  Input q, k, v;
  std::int64_t next_task;  ///< 0 at the start of a phase
};

struct ForwardArgs : DenseArgs {
  Output out;
  Output lse;  ///< columns unused; data may be null
  std::int64_t task_rows;
  std::int64_t tasks;
  bool last_rows_first;  ///< the last rows see the most keys
  float* scratch;
  ForwardScratch layout;
};

struct BackwardScratch {
  std::int64_t keys_across, values_across;  ///< K, V transposed [keys / tile columns, dim, within]
  std::int64_t keys;                        ///< K [head_dim padded / tile columns, keys, within]
  std::int64_t keys_rows, values_rows;      ///< K, V [keys, dim] to transpose, if strided
  std::int64_t queries, douts;              ///< Q, dO [dim padded / tile columns, rows, within]
  std::int64_t queries_rows, douts_rows;    ///< Q, dO [rows, dim], only if columns are strided
  std::int64_t dk, dv;                      ///< [keys, dim padded]
  std::int64_t probabilities;               ///< P [rows, kScoresRow]
  std::int64_t gradients;                   ///< dP, then dS [rows, keys + gap]
  std::int64_t floats;
};

struct BackwardArgs : DenseArgs {
  Input out, dout, lse, dlse;
  Output dq, dk, dv;
  Output dq_sums;         ///< where dQ is summed: dq itself, or the workspace; columns adjoin
  float* delta;           ///< [batch, q_heads, q_len]: rowsum(dO o O) - dlse
  std::uint32_t* turns;   ///< [batch, q_heads, row tiles]: key tiles added to dQ so far
  std::int64_t key_tile;  ///< keys of a tile
  std::int64_t row_tiles, key_tiles;
  float* scratch;
  BackwardScratch layout;
};

/// One worker of each phase; to be called by every worker of a pool with the same arguments, and
/// with next_task = 0 at the start of a phase.
struct FlashWorkers {
  void (*forward)(void* forward_args, int worker);
  void (*backward_prepare)(void* backward_args, int worker);
  void (*backward)(void* backward_args, int worker);
  void (*backward_store_dq)(void* backward_args, int worker);
};

// flash_forward.cpp and flash_backward.cpp, once for each instruction set.
#define FOVEA_DECLARE_FLASH(isa)                             \
  void flash_forward_##isa(void* args, int worker);          \
  void flash_backward_prepare_##isa(void* args, int worker); \
  void flash_backward_##isa(void* args, int worker);         \
  void flash_backward_store_dq_##isa(void* args, int worker);
FOVEA_DECLARE_FLASH(baseline)
FOVEA_DECLARE_FLASH(avx2)
FOVEA_DECLARE_FLASH(avx512)
#undef FOVEA_DECLARE_FLASH

}  // namespace fovea::cpu
