// What the flash kernels are called with: plain data, shared by the files that are compiled for one
// instruction set and by flash_kernels.cpp, which is compiled for every machine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "contract/plain_call.h"

namespace fovea::cpu {

using namespace plain;

/// Queries of a panel: what stands side by side in a tile of scores.
inline constexpr std::int64_t kPanel = 64;
/// From one row of a tile of scores to the next: no power of two, so that the elements of a column
/// fall into different sets of the L1 cache.
inline constexpr std::int64_t kScoresRow = 80;
/// Keys of a tile in forward: 16 register tiles high; K^, V and scores of a tile fit the L1 cache
/// two at a time.
inline constexpr std::int64_t kForwardKeys = 96;
/// Keys that share a product P V with AMX.
inline constexpr std::int64_t kForwardSpan = 192;
/// Most queries of a task in forward.
inline constexpr std::int64_t kForwardMaxRows = 512;
/// Queries of a tile in backward, and the most keys of one.
inline constexpr std::int64_t kBackwardRows = 96;
inline constexpr std::int64_t kBackwardMaxKeys = 256;
/// Floats between the rows of dS in backward, which keep them out of the same sets of the L1 cache.
inline constexpr std::int64_t kBackwardGap = 16;
/// Widths of packed operands are rounded up to this, a multiple of every vector length.
inline constexpr std::int64_t kPadding = 64;

/// Row i sees keys j with i - below <= j <= i + above; INT64_MAX = no limit.
struct BandLimits {
  std::int64_t below, above;
};

/// What every phase of every dense f32 kernel is told.
struct DenseArgs {
  Shape shape;
  BandLimits band;
  double scale;
  Input q, k, v;
  std::int64_t next_task;  ///< 0 at the start of a phase
};

/// What every phase of the flash kernels is told.
struct FlashArgs : Call {
  std::int64_t next_task;  ///< 0 at the start of a phase
};

/// Each worker's scratch: where its arrays begin, in floats.
struct ForwardScratch {
  std::int64_t queries;        ///< [panels, tile columns, head_dim, within], see tile_pack.h
  std::int64_t sums;           ///< O [rows, v_head_dim padded]
  std::int64_t scores;         ///< S, then P [kForwardKeys, kScoresRow]
  std::int64_t probabilities;  ///< P as pairs of bf16 [kForwardSpan / 2, kScoresRow]
  std::int64_t bias;           ///< additive mask [kForwardKeys, kScoresRow], if there is one
  std::int64_t values;         ///< V [v_head_dim padded / tile columns, kForwardKeys, tile columns]
  std::int64_t keys;           ///< K [kForwardKeys, head_dim], where it cannot be read in place
  std::int64_t staged;         ///< rows of Q or V on their way [kForwardKeys, dim]
  std::int64_t maxima, weights, rescale;  ///< [rows]
  std::int64_t floats;                    ///< all of it
};

/// What every forward kernel is told.
struct ResultArgs : FlashArgs {
  Sink out;
  Output lse;  ///< columns unused; data may be null
};

struct ForwardArgs : ResultArgs {
  std::int64_t task_rows;
  std::int64_t tasks;
  bool last_rows_first;  ///< the last rows see the most keys
  float* scratch;
  ForwardScratch layout;
};

/// The most queries of a sequence in decoding: with 16, the flash kernels take 1.3 to 2.5 times as
/// long (portable in bf16: as long), with 32 as long, whatever the group of query heads.
inline constexpr std::int64_t kDecodeMaxQueries = 16;
/// The most query rows that share a KV head.
inline constexpr std::int64_t kDecodeMaxRows = 128;

struct DecodeScratch {
  std::int64_t queries;  ///< [rows, head_dim]
  std::int64_t scores;   ///< S, then P [rows, kPanel]
  std::int64_t bias;     ///< additive mask [rows, kPanel], if there is one
  std::int64_t keys;     ///< K [kPanel, head_dim], where it cannot be read in place
  std::int64_t values;   ///< V [kPanel, v_head_dim], likewise
  std::int64_t sums;     ///< a row of O [v_head_dim padded]
  std::int64_t floats;
};

struct DecodeArgs : ResultArgs {
  std::int64_t rows;    ///< that share a KV head, at most
  std::int64_t chunk;   ///< keys of a task
  std::int64_t chunks;  ///< of the longest sequence
  std::int64_t workers;
  // What is known of a row after a chunk, [batch, kv_heads, chunks, rows].
  float* maxima;
  float* weights;
  float* sums;            ///< O [.., v_head_dim padded]
  std::int64_t sums_row;  ///< floats between its rows
  float* scratch;
  DecodeScratch layout;
};

struct BackwardScratch {
  std::int64_t keys_across, values_across;  ///< K, V transposed [keys / tile columns, dim, within]
  std::int64_t keys;                        ///< K [head_dim padded / tile columns, keys, within]
  std::int64_t queries, douts;              ///< Q, dO [dim padded / tile columns, rows, within]
  std::int64_t queries_rows, douts_rows;    ///< Q, dO [rows, dim], where not read in place
  std::int64_t staged;                      ///< rows of K or V on their way [key tile, dim]
  std::int64_t bias;                        ///< additive mask [rows, kPanel], if there is one
  std::int64_t dmask;                       ///< dmask of a tile [rows, key tile], if it is wanted
  std::int64_t dk, dv;                      ///< [keys, dim padded]
  std::int64_t probabilities;               ///< P [rows, kScoresRow]
  std::int64_t gradients;                   ///< dP, then dS [rows, keys + gap]
  std::int64_t products;                    ///< dP of a panel [rows, kScoresRow], for bf16 pairs
  std::int64_t floats;
};

struct BackwardArgs : FlashArgs {
  Source out, dout;
  Input lse, dlse;  ///< columns unused
  Sink dq, dk, dv;
  MaskSink dmask;
  bool wants_dq, wants_dk, wants_dv;  ///< dq, dk, dv, or the norms' weights
  Output dq_sums;         ///< [batch, q_heads, q_len]: where dQ^ is summed; columns adjoin
  bool sums_in_dq;        ///< dq_sums is dq itself
  float* delta;           ///< [batch, q_heads, q_len]: rowsum(dO o O) - dlse
  double* dsinks;         ///< [batch, q_heads, row tiles], or null
  float* dq_weights;      ///< [batch, q_heads, row tiles, segments, head_dim], or null
  float* dk_weights;      ///< [key tiles, batch, kv_heads, segments, head_dim], or null
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
  void (*backward_dmask)(void* backward_args, int worker);
};

struct DecodeWorkers {
  void (*decode)(void* decode_args, int worker);
  void (*merge)(void* decode_args, int worker);
};

// flash_forward.cpp, flash_backward.cpp and decode_forward.cpp, once for each instruction set.
#define FOVEA_DECLARE_FLASH(isa)                              \
  void flash_forward_##isa(void* args, int worker);           \
  void decode_##isa(void* args, int worker);                  \
  void decode_merge_##isa(void* args, int worker);            \
  void flash_backward_prepare_##isa(void* args, int worker);  \
  void flash_backward_##isa(void* args, int worker);          \
  void flash_backward_store_dq_##isa(void* args, int worker); \
  void flash_backward_dmask_##isa(void* args, int worker);
FOVEA_DECLARE_FLASH(baseline)
FOVEA_DECLARE_FLASH(avx2)
FOVEA_DECLARE_FLASH(avx512)
FOVEA_DECLARE_FLASH(avx512bf16)
FOVEA_DECLARE_FLASH(amxbf16)
#undef FOVEA_DECLARE_FLASH

}  // namespace fovea::cpu
