// A problem as plain data: what kernels that run the whole contract are told, without views, dtypes
// as enumerations or optional parts, so that it can be copied to a device or into code that is
// compiled for one instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fovea::plain {

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
  std::uint64_t seed = 0, offset = 0;
  Integers seed_tensor, offset_tensor;  ///< instead of seed; added to offset
  Integers streams;                     ///< [batch, heads]; absent: batch * q_heads + head
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

/// What does not depend on the direction.
struct Call {
  Shape shape;  ///< maxima where lengths vary
  Source q, k, v;
  Lengths lengths;
  BandArgs band;
  ScoreArgs scores;
  double scale;
};

}  // namespace fovea::plain
