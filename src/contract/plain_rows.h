// Where the rows of a sequence lie and which keys they see: lengths, segments, pages, bands. Shared
// by host and device, and by sources that are compiled for one instruction set.
#pragma once

#include <cstdint>

#include "contract/host_device.h"
#include "contract/philox.h"
#include "contract/plain_call.h"

namespace fovea::plain {

FOVEA_HD_INLINE std::int64_t lesser(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
FOVEA_HD_INLINE std::int64_t greater(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

FOVEA_HD_INLINE std::int64_t size_of(Element element) {
  return element == Element::f64 ? 8 : element == Element::f32 ? 4 : 2;
}

FOVEA_HD_INLINE std::int64_t integer_at(const Integers& x, std::int64_t at) {
  return x.wide ? static_cast<const std::int64_t*>(x.data)[at]
                : static_cast<const std::int32_t*>(x.data)[at];
}

/// A half-open range.
struct Span {
  std::int64_t begin, end;
  FOVEA_HD_INLINE bool empty() const { return begin >= end; }
};
FOVEA_HD_INLINE Span meet(Span a, Span b) {
  return {greater(a.begin, b.begin), lesser(a.end, b.end)};
}
FOVEA_HD_INLINE bool covers(Span a, Span b) { return a.begin <= b.begin && b.end <= a.end; }

/// contract/band.h in a form that leaves no copy of its own behind.
struct Band {
  std::int64_t below, above;

  FOVEA_HD_INLINE static std::int64_t shift(std::int64_t n, std::int64_t by) {
    if (by > 0 && n > INT64_MAX - by) return INT64_MAX;
    if (by < 0 && n < INT64_MIN - by) return INT64_MIN;
    return n + by;
  }
  FOVEA_HD_INLINE static std::int64_t before(std::int64_t n, std::int64_t by) {
    return by == INT64_MAX ? INT64_MIN : shift(n, -by);
  }
  FOVEA_HD_INLINE static std::int64_t behind(std::int64_t n, std::int64_t by) {
    return by == INT64_MAX ? INT64_MAX : shift(shift(n, by), 1);
  }
  /// Keys that row i sees, and keys that some or every row of [begin, end) sees; not clamped.
  FOVEA_HD_INLINE Span keys_of(std::int64_t i) const {
    return {before(i, below), behind(i, above)};
  }
  FOVEA_HD_INLINE Span keys_of_some(Span rows) const {
    return {before(rows.begin, below), behind(rows.end - 1, above)};
  }
  FOVEA_HD_INLINE Span keys_of_every(Span rows) const {
    return {before(rows.end - 1, below), behind(rows.begin, above)};
  }
  /// Rows that see some or every key of [begin, end), not clamped.
  FOVEA_HD_INLINE Span rows_of_some(Span keys) const {
    return {before(keys.begin, above), behind(keys.end - 1, below)};
  }
  FOVEA_HD_INLINE Span rows_of_every(Span keys) const {
    return {before(keys.end - 1, above), behind(keys.begin, below)};
  }
};

/// One sequence of the batch.
struct Sequence {
  std::int64_t batch = 0;
  std::int64_t q_begin = 0, k_begin = 0;  ///< first row in packed tensors
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;       ///< keys that count
  std::int64_t kv_capacity = 0;  ///< keys that there are; those beyond kv_len are never read
};

FOVEA_HD_INLINE std::int64_t clamp(std::int64_t x, std::int64_t low, std::int64_t high) {
  return lesser(greater(x, low), high);
}

/// The largest of the entries of cu_seqlens up to the b-th, and 0.
FOVEA_HD_INLINE std::int64_t largest_entry(const Integers& cu, std::int64_t b) {
  std::int64_t largest = 0;
  for (std::int64_t n = 0; n <= b; ++n) largest = greater(largest, integer_at(cu, n * cu.stride));
  return largest;
}

/// The rows that cu_seqlens gives sequence b, within the tensor and the maximum. Where entries
/// fall, a sequence begins behind all those before it, so that no row belongs to two. largest:
/// largest_entry(cu, b).
FOVEA_HD_INLINE Span packed_rows(const Integers& cu, std::int64_t b, std::int64_t largest,
                                 std::int64_t total, std::int64_t max_len) {
  const std::int64_t begin = lesser(largest, total);
  const std::int64_t end = clamp(integer_at(cu, (b + 1) * cu.stride), begin, total);
  return {begin, begin + lesser(end - begin, max_len)};
}

/// largest_entry of cu_q and cu_k, where there are such.
struct LargestEntries {
  std::int64_t q = 0, k = 0;
};

FOVEA_HD_INLINE Sequence sequence_of(const Shape& shape, const Lengths& lengths, std::int64_t b,
                                     LargestEntries largest) {
  Sequence s;
  s.batch = b;
  s.q_len = shape.q_len;
  s.kv_capacity = shape.kv_len;
  if (lengths.cu_q.data != nullptr) {
    const Span rows = packed_rows(lengths.cu_q, b, largest.q, lengths.total_q, s.q_len);
    s.q_begin = rows.begin;
    s.q_len = rows.end - rows.begin;
  }
  if (lengths.cu_k.data != nullptr) {
    const Span rows = packed_rows(lengths.cu_k, b, largest.k, lengths.total_k, s.kv_capacity);
    s.k_begin = rows.begin;
    s.kv_capacity = rows.end - rows.begin;
  }
  s.kv_len = s.kv_capacity;
  if (lengths.used_k.data != nullptr)
    s.kv_len = clamp(integer_at(lengths.used_k, b * lengths.used_k.stride), 0, s.kv_capacity);
  return s;
}

FOVEA_HD_INLINE Sequence sequence_of(const Call& args, std::int64_t b) {
  const Lengths& lengths = args.lengths;
  LargestEntries largest;
  if (lengths.cu_q.data != nullptr) largest.q = largest_entry(lengths.cu_q, b);
  if (lengths.cu_k.data != nullptr) largest.k = largest_entry(lengths.cu_k, b);
  return sequence_of(args.shape, lengths, b, largest);
}

/// The band's limits for a sequence of these lengths.
FOVEA_HD_INLINE Band band_of(const BandArgs& band, const Sequence& s) {
  const std::int64_t offset = band.bottom_right ? s.kv_len - s.q_len : 0;
  return {band.left == INT64_MAX ? INT64_MAX : Band::shift(band.left, -offset),
          band.right == INT64_MAX ? INT64_MAX : Band::shift(band.right, offset)};
}

/// Where one head of one sequence begins, for every operand that goes by queries or by keys.
struct Place {
  std::int64_t batch, head;
  std::int64_t first_row;  ///< of the sequence, in packed tensors
};

/// Rows that follow each other at one distance: data is row 0's.
template <class Pointer>
struct Run {
  Pointer data;
  Element element;
  std::int64_t row, column, count;
  int segment;
};

/// The run that begins with row `row`, at most `count` long.
template <class Pointer>
FOVEA_HD_INLINE Run<Pointer> run_at(const Segments<Pointer>& segments, const Place& place,
                                    std::int64_t row, std::int64_t count) {
  int n = 0;
  while (n + 1 < segments.count && row >= segments.at[n].end) ++n;
  const Segment<Pointer>& s = segments.at[n];
  const std::int64_t at =
      place.batch * s.batch + place.head * s.head + (place.first_row + row - s.begin) * s.row;
  // The last segment has no end: packed tensors hold the rows of all sequences.
  const std::int64_t left = n + 1 < segments.count ? s.end - row : count;
  return {s.data == nullptr ? nullptr : s.data + at * size_of(s.element),
          s.element,
          s.row,
          s.column,
          lesser(count, left),
          n};
}

/// The same for rows behind a page table.
FOVEA_HD_INLINE Run<const char*> page_run_at(const Source& x, const Place& place, std::int64_t row,
                                             std::int64_t count) {
  const Pages& pages = x.pages;
  const Segment<const char*>& s = x.segments.at[0];
  const std::int64_t listed =
      pages.table[place.batch * pages.table_batch + row / pages.size * pages.table_column];
  const std::int64_t page = clamp(listed, 0, pages.count - 1), within = row % pages.size;
  const std::int64_t at = page * pages.stride + place.head * s.head + within * s.row;
  return {s.data + at * size_of(s.element),   s.element, s.row, s.column,
          lesser(count, pages.size - within), 0};
}

FOVEA_HD_INLINE Run<const char*> source_run(const Source& x, const Place& place, std::int64_t row,
                                            std::int64_t count) {
  return x.pages.table != nullptr ? page_run_at(x, place, row, count)
                                  : run_at(x.segments, place, row, count);
}

/// philox::make_stream for one (batch, head), with what lies in memory read.
FOVEA_HD_INLINE philox::Stream stream_of(const DropoutArgs& x, std::int64_t batch,
                                         std::int64_t head, std::int64_t q_heads) {
  const bool named = x.streams.data != nullptr;
  const std::int64_t stream =
      named ? integer_at(x.streams, batch * x.streams_batch + head * x.streams.stride)
            : batch * q_heads + head;
  const auto word = [](const Integers& tensor, std::uint64_t otherwise) {
    return tensor.data != nullptr ? static_cast<std::uint64_t>(integer_at(tensor, 0)) : otherwise;
  };
  const std::uint64_t offset = x.offset + word(x.offset_tensor, 0);
  return {word(x.seed_tensor, x.seed) + (offset >> 32) * philox::kOffsetFactor,
          static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(offset)};
}

}  // namespace fovea::plain
