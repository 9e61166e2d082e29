// From global memory to the tiles in shared memory that products are taken of.
#pragma once

#include "contract/plain_rows.h"
#include "cuda/device/copy.h"
#include "cuda/sm80_products.h"

namespace fovea::cuda::FOVEA_WORLD {

/// Rows of one head of one sequence, as they lie or behind a page table. Bytes throughout.
struct HeadRows {
  const char* base = nullptr;
  std::int64_t row = 0;
  const std::int32_t* pages = nullptr;  ///< of the sequence; null: rows follow each other
  std::int64_t page_step = 0, page_size = 1, page_count = 0, page = 0;
  bool aligned = true;  ///< every row begins at a multiple of 16

  FOVEA_DEVICE const char* at(std::int64_t n) const {
    if (pages == nullptr) return base + n * row;
    const std::int64_t listed = pages[n / page_size * page_step];
    return base + plain::clamp(listed, 0, page_count - 1) * page + n % page_size * row;
  }
};

/// place.first_row counts for packed tensors alone. The source has one segment.
template <class Mode>
FOVEA_DEVICE HeadRows head_rows(const plain::Source& x, const plain::Place& place) {
  constexpr std::int64_t kSize = sizeof(typename Mode::Element);
  const plain::Segment<const char*>& s = x.segments.at[0];
  HeadRows rows;
  rows.row = s.row * kSize;
  rows.base = s.data + (place.head * s.head) * kSize;
  if (x.pages.table != nullptr) {
    rows.pages = x.pages.table + place.batch * x.pages.table_batch;
    rows.page_step = x.pages.table_column;
    rows.page_size = x.pages.size;
    rows.page_count = x.pages.count;
    rows.page = x.pages.stride * kSize;
  } else {
    rows.base += (place.batch * s.batch + place.first_row * s.row) * kSize;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(rows.base);
  rows.aligned = (address | static_cast<std::uintptr_t>(rows.row | rows.page)) % 16 == 0;
  return rows;
}

/// Starts copying columns [first_column, first_column + kColumns) of kRows rows. `row_at(r)` is
/// where row r begins, or null, which makes zeros; so are columns from `width` on. Where rows do
/// not begin (`aligned`) or end at multiples of 16 bytes, elements go one by one. Chunk n of the
/// tile, 16 bytes, is thread n % kThreads's, whatever way it comes.
template <class Mode, int kRows, int kColumns, int kThreads, class T, class RowAt>
FOVEA_DEVICE void copy_any_rows(const T& tile, std::int64_t width, int first_column, bool aligned,
                                RowAt&& row_at) {
  using Element = typename Mode::Element;
  constexpr int kInChunk = 16 / static_cast<int>(sizeof(Element));
  const std::int64_t left = width - first_column;
  if (aligned && width % kInChunk == 0) {
    FOVEA_ROLL
    for (int n = thread_index(); n < kRows * kColumns / kInChunk; n += kThreads) {
      const int row = n / (kColumns / kInChunk), column = n % (kColumns / kInChunk) * kInChunk;
      const char* from = row_at(row);
      const bool there = from != nullptr && column < left;
      copy_async_16(tile.data, T::at(row, column),
                    there ? from + (first_column + column) * 16 / kInChunk : from, there);
    }
    return;
  }
  FOVEA_ROLL
  for (int n = thread_index(); n < kRows * kColumns / kInChunk; n += kThreads) {
    const int row = n / (kColumns / kInChunk), first = n % (kColumns / kInChunk) * kInChunk;
    const auto* from = reinterpret_cast<const Element*>(row_at(row));
    FOVEA_ROLL
    for (int column = first; column < first + kInChunk; ++column)
      tile.data[T::at(row, column)] =
          from != nullptr && column < left ? from[first_column + column] : Element{};
  }
}

/// Whether copies of such rows go 16 bytes at a time: then chunk n of a tile is copied by thread n,
/// modulo the block's threads.
template <class Mode>
FOVEA_DEVICE bool copied_in_chunks(const HeadRows& rows, std::int64_t width) {
  return rows.aligned && width % (16 / static_cast<int>(sizeof(typename Mode::Element))) == 0;
}

/// The same of rows [first, first + kRows) of a head, those from `end` on zeros.
template <class Mode, int kRows, int kColumns, int kThreads, class T>
FOVEA_DEVICE void copy_rows(const T& tile, const HeadRows& rows, std::int64_t first,
                            std::int64_t end, std::int64_t width, int first_column = 0) {
  constexpr int kInChunk = 16 / static_cast<int>(sizeof(typename Mode::Element));
  constexpr int kChunks = kColumns / kInChunk;
  if (rows.pages != nullptr || !rows.aligned || width % kInChunk != 0) {
    copy_any_rows<Mode, kRows, kColumns, kThreads>(
        tile, width, first_column, rows.aligned,
        [&](int r) { return first + r < end ? rows.at(first + r) : nullptr; });
    return;
  }
  if constexpr (kThreads >= kChunks) {
    // A thread keeps its column, and goes down the rows.
    constexpr int kStep = kThreads / kChunks;
    const int row = thread_index() / kChunks, column = thread_index() % kChunks * kInChunk;
    const char* const base = rows.base;  // read once: copies may write anywhere, for all one knows
    const std::int64_t step = kStep * rows.row;
    const char* from = base + (first + row) * rows.row + (first_column + column) * 16 / kInChunk;
    const std::int64_t left = end - first - row;
    const int there =
        column < width - first_column ? static_cast<int>(plain::clamp(left, 0, kRows)) : 0;
    FOVEA_UNROLL
    for (int r = 0; r < kRows; r += kStep) {
      if (kRows % kStep != 0 && row + r >= kRows) break;
      copy_async_16(tile.data, T::at(row + r, column), r < there ? from : base, r < there);
      from += step;
    }
  } else {
    copy_any_rows<Mode, kRows, kColumns, kThreads>(tile, width, first_column, true, [&](int r) {
      return first + r < end ? rows.at(first + r) : nullptr;
    });
  }
}

/// How many tiles of kRows rows, of which there are `rows`, can be copied by WholeTile: their
/// `width` fills tiles, and their numbers have 31 bits.
template <int kRows, int kColumns>
FOVEA_DEVICE int whole_tiles(const HeadRows& from, std::int64_t rows, std::int64_t width) {
  const bool simple = from.aligned && from.pages == nullptr && from.row >= 0 &&
                      from.row <= INT32_MAX && width % kColumns == 0 && rows <= INT32_MAX;
  return simple ? static_cast<int>(rows / kRows) : 0;
}
/// A copy of tile `number` of a head's rows, one of whole_tiles(), in the fewest instructions, and
/// in two parts: what they need is read from shared memory at a time when nobody waits for it.
template <int kRows, int kColumns, int kThreads, class T>
class WholeTile {
  static constexpr int kChunks = kColumns / T::kInChunk, kStep = kThreads / kChunks;

 public:
  static constexpr bool kCan = kThreads >= kChunks && kRows % (kStep > 0 ? kStep : 1) == 0;

  FOVEA_DEVICE WholeTile(const HeadRows& rows, int number)
      : thread_(fresh(thread_index())), bytes_(static_cast<std::uint32_t>(rows.row)) {
    const auto row = static_cast<std::uint32_t>(number * kRows + thread_ / kChunks);
    from_ = rows.base + static_cast<std::uint64_t>(row) * bytes_ + thread_ % kChunks * 16;
  }
  FOVEA_DEVICE void copy_to(const T& tile) const {
    const int row = thread_ / kChunks, column = thread_ % kChunks * T::kInChunk;
    const char* from = from_;
    FOVEA_UNROLL
    for (int r = 0; r < kRows; r += kStep) {
      copy_async_16(tile.data, T::at(row + r, column), from, true);
      from += static_cast<std::uint64_t>(kStep) * bytes_;
    }
  }

 private:
  int thread_;
  std::uint32_t bytes_;
  const char* from_;  ///< the thread's first 16 bytes
};

/// Where f32 rows arrive that become a PartsTile: a thread takes apart what it has copied, and
/// needs to wait for nobody to do so, nor to copy the next rows to the same place.
template <int kRows, int kColumns>
struct Staged {
  using Element = float;
  static constexpr int kInChunk = 4;
  static constexpr int kElements = kRows * kColumns;
  static constexpr int kBytes = kElements * static_cast<int>(sizeof(float));
  Shared<float> data;

  FOVEA_DEVICE explicit Staged(int byte_offset)
      : data(shared_array<float>(byte_offset, kElements)) {}
  FOVEA_DEVICE static int at(int row, int column) { return row * kColumns + column; }
};

struct alignas(8) Words2 {
  std::uint32_t w[2];
};
/// The thread's share of the rows, which have arrived for it, to their parts.
template <int kThreads, int kRows, int kColumns>
FOVEA_DEVICE void take_apart(const Staged<kRows, kColumns>& from,
                             const PartsTile<kRows, kColumns>& to) {
  using To = PartsTile<kRows, kColumns>;
  constexpr int kChunks = kColumns / 4, kStep = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0);
  const int row = thread_index() / kChunks, column = thread_index() % kChunks * 4;
  const Shared<Words4> chunks = from.data.template as<Words4>();
  const Shared<Words2> pairs = to.data.template as<Words2>();
  FOVEA_UNROLL
  for (int r = 0; r < kRows; r += kStep) {
    if (kRows % kStep != 0 && row + r >= kRows) break;
    const Words4 x = chunks[thread_index() + r * kChunks];
    const Parts first = parts_of(bits_to_float(x.w[0]), bits_to_float(x.w[1]));
    const Parts second = parts_of(bits_to_float(x.w[2]), bits_to_float(x.w[3]));
    FOVEA_UNROLL
    for (int p = 0; p < 3; ++p)
      pairs[To::at(row + r, column + p * To::kPart) / 4] = {{first.word[p], second.word[p]}};
  }
}

/// An operand of a block in shared memory; kInParts: made once, of f32, for all its warps.
template <class Mode, int kRows, int kColumns, bool kInParts>
using OperandTile = std::conditional_t<kInParts, PartsTile<kRows, kColumns>,
                                       Tile<typename Mode::Element, kRows, kColumns>>;

/// An element of a tile. What is not finite has no parts but the largest.
template <class T>
FOVEA_DEVICE float value_at(const T& tile, int row, int column) {
  const int at = T::at(row, column);
  const float value = to_f32(tile.data[at]);
  if constexpr (kHasParts<T>) {
    if (is_finite(value))
      return value + to_f32(tile.data[at + T::kPart]) + to_f32(tile.data[at + 2 * T::kPart]);
  }
  return value;
}
template <class T>
FOVEA_DEVICE void clear_at(const T& tile, int row, int column) {
  FOVEA_UNROLL
  for (int p = 0; p < (kHasParts<T> ? 3 : 1); ++p)
    tile.data[T::at(row, column) + p * T::kPart] = typename T::Element{};
}

/// Whether the thread's share of a tile, chunks of 16 bytes as copies share them out, holds a
/// number that is not finite, as the largest parts say where there are parts. By the bits: the
/// exponent of such a number is all ones, and one more carries into the sign.
template <int kRows, int kColumns, int kThreads, class T>
FOVEA_DEVICE bool has_non_finite(const T& tile) {
  using Element = typename T::Element;
  constexpr std::uint32_t kExponent = std::is_same_v<Element, Bf16>  ? 0x7F807F80u
                                      : std::is_same_v<Element, F16> ? 0x7C007C00u
                                                                     : 0x7F800000u;
  constexpr std::uint32_t kOne = kExponent & ~(kExponent << 1);
  constexpr std::uint32_t kSign = kExponent + kOne;
  constexpr int kChunks = kColumns / T::kInChunk;
  const Shared<Words4> words = tile.data.template as<Words4>();
  std::uint32_t found = 0;
  FOVEA_ROLL
  for (int n = thread_index(); n < kRows * kChunks; n += kThreads) {
    const Words4 x = words[T::at(n / kChunks, n % kChunks * T::kInChunk) / T::kInChunk];
    FOVEA_UNROLL
    for (int k = 0; k < 4; ++k) found |= (x.w[k] & kExponent) + kOne;
  }
  return (found & kSign) != 0;
}

/// Stores two neighbouring elements of a row, of which `left` are within it.
FOVEA_DEVICE void store_pair(const plain::Run<char*>& to, int column, int left, float low,
                             float high) {
  if (left >= 2 && to.column == 1) {
    char* at = to.data + column * plain::size_of(to.element);
    const auto address = reinterpret_cast<std::uintptr_t>(at);
    if (to.element == plain::Element::bf16 && address % 4 == 0) {
      *reinterpret_cast<std::uint32_t*>(at) = pack<Bf16>(low, high);
      return;
    }
    if (to.element == plain::Element::f16 && address % 4 == 0) {
      *reinterpret_cast<std::uint32_t*>(at) = pack<F16>(low, high);
      return;
    }
  }
  if (left >= 1) store_element(to.data, to.element, column * to.column, low);
  if (left >= 2) store_element(to.data, to.element, (column + 1) * to.column, high);
}

/// Stores a lane's pairs n of a row's elements, 8 columns from one to the next, of which `left`
/// columns are within the row. pair(n, x): element x of pair n.
template <class Mode, int kPairs, class Pair>
FOVEA_DEVICE void store_row_pairs(const plain::Run<char*>& to, int column, int left, Pair&& pair) {
  using Element = typename Mode::Element;
  constexpr auto kSize = static_cast<int>(sizeof(Element));
  char* at = to.data + column * kSize;
  const bool simple = to.element == Mode::kElement && to.column == 1 && left > 8 * kPairs - 7 &&
                      reinterpret_cast<std::uintptr_t>(at) % (2 * kSize) == 0;
  if (simple) {
    FOVEA_UNROLL
    for (int n = 0; n < kPairs; ++n) {
      if constexpr (kIsWide<Mode>)
        store_8(at + 32 * n, pair(n, 0), pair(n, 1));
      else
        reinterpret_cast<std::uint32_t*>(at)[4 * n] = pack<Element>(pair(n, 0), pair(n, 1));
    }
    return;
  }
  FOVEA_UNROLL
  for (int n = 0; n < kPairs; ++n)
    store_pair(to, column + 8 * n, left - 8 * n, pair(n, 0), pair(n, 1));
}

}  // namespace fovea::cuda::FOVEA_WORLD
