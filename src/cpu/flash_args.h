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
inline constexpr int kMostSegments = 4;

/// A tensor [batch, heads, rows, columns] of floats; strides in elements.
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

/// What every phase of every dense f32 kernel is told.
struct DenseArgs {
  Shape shape;
  BandLimits band;
  double scale;
  Input q, k, v;
  std::int64_t next_task;  ///< 0 at the start of a phase
};

// Operands as they lie.

enum class Element : std::uint8_t { f32, f16, bf16, f64 };

/// A vector of floats, or of integers; data is null where it is absent.
struct Floats {
  const void* data = nullptr;
  Element element = Element::f32;
  std::int64_t stride = 0;
};
struct Integers {
  const void* data = nullptr;
  bool wide = false;  ///< 64 bits, not 32
  std::int64_t stride = 0;
};

/// Rows [begin, end) of the sequence, [batch, heads, rows, columns]; strides in elements.
template <class Pointer>
struct Segment {
  Pointer data = nullptr;
  Element element = Element::f32;
  std::int64_t begin = 0, end = 0;
  std::int64_t batch = 0, head = 0, row = 0, column = 0;
};
template <class Pointer>
struct Segments {
  int count = 0;
  Segment<Pointer> at[kMostSegments];
};

/// Row r of sequence b is row r % size of page table[b, r / size].
struct Pages {
  const std::int32_t* table = nullptr;
  std::int64_t table_batch = 0, table_column = 0;
  std::int64_t size = 1, count = 0, stride = 0;  ///< rows of a page, pages, elements between them
};

/// cos or sin [batch, rows, columns].
struct Angles {
  const void* data = nullptr;
  Element element = Element::f32;
  std::int64_t batch = 0, row = 0, column = 0, rows = 0;
};

/// What happens to a row of q or k before the products: RMSNorm, then RoPE.
struct Prologue {
  bool norm = false, rotate = false;
  float eps = 0;
  Floats weights[kMostSegments];  ///< by segment; absent = ones
  Angles cos, sin;
  bool interleaved = false;  ///< pairs (2i, 2i + 1), else (i, i + rotary_dim / 2)
  bool duplicated = false;   ///< each pair's value stands at the place of either element
  std::int64_t rotary_dim = 0, offset = 0;
  Integers offsets;  ///< [batch], added to offset
};

/// q, k, v, out or dout: what there is to know to read a row of it.
struct Source {
  Segments<const char*> segments;
  Pages pages;
  Prologue prologue;
  Element compute = Element::f32;  ///< rows are rounded to this
  bool in_place = false;           ///< every row can be read where it lies, as f32
  std::int64_t width = 0;
};

/// out or a gradient: what there is to know to write a row of it. No segments: not wanted.
struct Sink {
  Segments<char*> segments;
  std::int64_t width = 0;
};

/// Where sequences lie in packed tensors, and how long they are. Absent: all have the shape's.
struct Lengths {
  Integers cu_q, cu_k;  ///< [batch + 1]
  Integers used_k;      ///< [batch]
  std::int64_t total_q = 0, total_k = 0;
};

// What happens to scores.

struct BandArgs {
  std::int64_t left = INT64_MAX, right = INT64_MAX;
  bool bottom_right = false;
};

struct MaskArgs {
  const void* data = nullptr;  ///< null: no mask
  bool additive = false;
  Element element = Element::f32;  ///< of an additive mask
  std::int64_t batch = 0, head = 0, row = 0, column = 0;
};

struct DropoutArgs {
  std::uint32_t threshold = 0;  ///< an element whose 16 bits are below it is dropped; 0: off
  float keep_scale = 1;
  std::uint64_t key = 0;
  std::uint32_t offset = 0;
  Integers streams;  ///< [batch, heads]; absent: batch * q_heads + head
  std::int64_t streams_batch = 0;
  std::int64_t row_origin = 0, column_origin = 0;
};

struct ScoreArgs {
  MaskArgs mask;
  float softcap = 0;
  Floats slopes;  ///< [heads], or [batch, heads]
  std::int64_t slopes_batch = 0;
  bool slopes_bottom_right = false;
  Floats sinks;  ///< [heads]
  DropoutArgs dropout;
};

/// The mask's gradient [batch, heads, rows, columns]; a size of 1 has stride 0: all are added up.
struct MaskSink {
  void* data = nullptr;  ///< null: not wanted
  Element element = Element::f32;
  std::int64_t sizes[4] = {}, strides[4] = {};
};

/// What every phase of the flash kernels is told.
struct FlashArgs {
  Shape shape;  ///< maxima where lengths vary
  Source q, k, v;
  Lengths lengths;
  BandArgs band;
  ScoreArgs scores;
  double scale;
  std::int64_t next_task;  ///< 0 at the start of a phase
};

/// Each worker's scratch: where its arrays begin, in floats.
struct ForwardScratch {
  std::int64_t queries;  ///< [panels, tile columns, head_dim, within], see tile_pack.h
  std::int64_t sums;     ///< O [rows, v_head_dim padded]
  std::int64_t scores;   ///< S, then P [kForwardKeys, kScoresRow]
  std::int64_t bias;     ///< additive mask [kForwardKeys, kScoresRow], if there is one
  std::int64_t values;   ///< V [v_head_dim padded / tile columns, kForwardKeys, tile columns]
  std::int64_t keys;     ///< K [kForwardKeys, head_dim], where it cannot be read in place
  std::int64_t staged;   ///< rows of Q or V on their way [kForwardKeys, dim]
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
#undef FOVEA_DECLARE_FLASH

}  // namespace fovea::cpu
