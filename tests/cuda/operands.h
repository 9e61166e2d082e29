// Operands of random layouts in device memory, with their values beside them, for the tests of the
// CUDA kernels that walk over rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "contract/elements.h"
#include "cuda/row_space.h"
#include "cuda/runtime.h"

namespace fovea::cuda::test {

/// Kernels run on a device where there is one, else on the emulated one.
inline const bool kChoosesWorld = [] {
#if FOVEA_CUDA_REAL
  if (real_runtime().unavailable().empty()) return true;
#endif
  return setenv("FOVEA_CUDA_EMULATE", "1", 0) == 0;
}();
inline void* stream() {
  const Result<void*> own = runtime().own_stream(0);
  EXPECT_TRUE(own.ok());
  return own.ok() ? *own : nullptr;
}

using plain::Element;
using Random = std::mt19937_64;

inline std::int64_t draw(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}
inline bool chance(Random& random, int percent) { return draw(random, 0, 99) < percent; }
inline double normal(Random& random) { return std::normal_distribution<double>()(random); }

inline DType dtype_of(Element element) {
  return element == Element::f64    ? DType::f64
         : element == Element::f16  ? DType::f16
         : element == Element::bf16 ? DType::bf16
                                    : DType::f32;
}
inline double rounded(Element element, double x) {
  double memory = 0;
  store_element(&memory, dtype_of(element), 0, x);
  return load_element(&memory, dtype_of(element), 0);
}
/// Relative error of one rounding, and of a few in f32 before it.
inline double tolerance(Element element) {
  return element == Element::bf16 ? 0.0042 : element == Element::f16 ? 0.0006 : 3e-6;
}
inline Element random_element(Random& random, bool with_f64 = true) {
  constexpr Element kAll[] = {Element::f32, Element::f16, Element::bf16, Element::f64};
  return kAll[draw(random, 0, with_f64 ? 3 : 2)];
}

/// Device memory between guards, NaN at first, and the host's copy of it.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes, std::size_t offset = 0) : bytes_(bytes), offset_(offset) {
    host_.assign(bytes + offset + 2 * kGuard, 0xFF);
    const Result<void*> memory = runtime().allocate(0, host_.size());
    EXPECT_TRUE(memory.ok());
    if (!memory.ok()) return;
    device_ = std::shared_ptr<void>(*memory,
                                    [](void* data) { EXPECT_TRUE(runtime().free(0, data).ok()); });
  }

  template <class T>
  T* as() {
    return reinterpret_cast<T*>(host_.data() + kGuard + offset_);
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  double get(Element element, std::int64_t n) {
    return load_element(as<char>(), dtype_of(element), n);
  }
  void set(Element element, std::int64_t n, double x) {
    store_element(as<char>(), dtype_of(element), n, x);
  }
  /// Where it lies on the device.
  template <class T>
  [[nodiscard]] T* at() const {
    return reinterpret_cast<T*>(static_cast<char*>(device_.get()) + kGuard + offset_);
  }
  void send() { EXPECT_TRUE(runtime().upload(0, device_.get(), host_.data(), host_.size()).ok()); }
  void fetch() {
    EXPECT_TRUE(runtime().synchronize(0, stream()).ok());
    EXPECT_TRUE(runtime().download(0, host_.data(), device_.get(), host_.size()).ok());
    const auto intact = [](unsigned char x) { return x == 0xFF; };
    EXPECT_TRUE(std::all_of(host_.begin(), host_.begin() + kGuard, intact)) << "before a buffer";
    EXPECT_TRUE(std::all_of(host_.end() - kGuard, host_.end(), intact)) << "behind a buffer";
  }
  /// Elements that are as they were at first.
  std::int64_t untouched(std::int64_t size) {
    std::int64_t count = 0;
    for (std::int64_t n = 0; n < static_cast<std::int64_t>(bytes_) / size; ++n) {
      const unsigned char* x = as<unsigned char>() + n * size;
      count += std::all_of(x, x + size, [](unsigned char byte) { return byte == 0xFF; }) ? 1 : 0;
    }
    return count;
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 256;
  std::size_t bytes_ = 0, offset_ = 0;
  std::vector<unsigned char> host_;
  std::shared_ptr<void> device_;
};

/// Values of a type in device memory.
template <class T>
Buffer buffer_of(const std::vector<T>& values) {
  Buffer buffer(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(buffer.as<char>(), values.data(), values.size() * sizeof(T));
  buffer.send();
  return buffer;
}

/// A vector of floats with its values.
struct Vector {
  Buffer buffer;
  plain::Floats floats;
  std::vector<double> values;
};
inline Vector random_vector(Random& random, std::int64_t count) {
  Vector v;
  v.floats.element = random_element(random);
  v.floats.stride = draw(random, 1, 2);
  v.buffer = Buffer(static_cast<std::size_t>((count * v.floats.stride + 1) * 8));
  for (std::int64_t n = 0; n < count; ++n) {
    v.values.push_back(rounded(v.floats.element, normal(random)));
    v.buffer.set(v.floats.element, n * v.floats.stride, v.values.back());
  }
  v.buffer.send();
  v.floats.data = v.buffer.at<void>();
  return v;
}

inline plain::Integers integers(Random& random, const std::vector<std::int64_t>& values,
                                Buffer& memory) {
  const bool wide = chance(random, 50);
  const std::int64_t stride = draw(random, 1, 2);
  memory =
      Buffer(static_cast<std::size_t>((static_cast<std::int64_t>(values.size()) * stride + 1) * 8));
  for (std::size_t n = 0; n < values.size(); ++n) {
    const std::size_t at = n * static_cast<std::size_t>(stride);
    if (wide)
      memory.as<std::int64_t>()[at] = values[n];
    else
      memory.as<std::int32_t>()[at] = static_cast<std::int32_t>(values[n]);
  }
  memory.send();
  return {memory.at<void>(), wide, stride};
}

/// Sequences of a batch on one side, with the host's view of their lengths.
struct Side {
  RowSpace space;
  std::vector<std::int64_t> begin, capacity, length;
  Buffer cu, used;

  [[nodiscard]] plain::Place place(std::int64_t b, std::int64_t h) const {
    return {b, h, begin[static_cast<std::size_t>(b)]};
  }
  [[nodiscard]] std::int64_t rows_of(std::int64_t b) const {
    return capacity[static_cast<std::size_t>(b)];
  }
  [[nodiscard]] std::int64_t length_of(std::int64_t b) const {
    return length[static_cast<std::size_t>(b)];
  }
};

inline Side random_side(Random& random, std::int64_t batch, std::int64_t heads, std::int64_t rows,
                        bool keys, bool packed) {
  Side side;
  RowSpace& space = side.space;
  space.keys = keys;
  space.packed = packed;
  space.shape = {batch, keys ? 1 : heads, keys ? heads : 1, keys ? 1 : rows, keys ? rows : 1, 1, 1};
  const auto size = static_cast<std::size_t>(batch);
  side.begin.assign(size, 0);
  side.capacity.assign(size, rows);
  if (packed) {
    std::vector<std::int64_t> cu = {draw(random, 0, 3)};
    // Some are empty, some longer than the maximum, which cuts them; entries may fall.
    for (std::size_t b = 0; b < size; ++b)
      cu.push_back(cu.back() + (chance(random, 25) ? 0 : draw(random, 0, rows + 2)));
    const std::int64_t total = cu.back() + draw(random, -1, 3);
    if (chance(random, 20)) cu[size / 2] += 3;
    std::int64_t behind = 0;
    for (std::size_t b = 0; b < size; ++b) {
      behind = std::min(std::max(behind, cu[b]), std::max<std::int64_t>(total, 0));
      const std::int64_t end = std::min(cu[b + 1], std::max<std::int64_t>(total, 0));
      side.begin[b] = behind;
      side.capacity[b] = std::clamp(end - behind, std::int64_t{0}, rows);
    }
    plain::Lengths& lengths = space.lengths;
    (keys ? lengths.total_k : lengths.total_q) = std::max<std::int64_t>(total, 0);
    (keys ? lengths.cu_k : lengths.cu_q) = integers(random, cu, side.cu);
  }
  side.length = side.capacity;
  if (keys && chance(random, 50)) {
    std::vector<std::int64_t> used;
    for (std::size_t b = 0; b < size; ++b) {
      used.push_back(draw(random, -1, side.capacity[b] + 2));
      side.length[b] = std::clamp(used.back(), std::int64_t{0}, side.capacity[b]);
    }
    space.lengths.used_k = integers(random, used, side.used);
  }
  return side;
}

/// A tensor in segments, and its values [batch, heads, rows, width] by sequence.
struct Operand {
  plain::Source source;
  std::vector<Buffer> buffers;
  std::vector<double> values;
  Buffer table;
  std::int64_t heads = 0, rows = 0, width = 0;
  std::vector<std::int64_t> places;  ///< of values, in elements of their segment
  std::vector<int> segments;         ///< of values

  [[nodiscard]] std::size_t index(std::int64_t b, std::int64_t h, std::int64_t row,
                                  std::int64_t d) const {
    return static_cast<std::size_t>(((b * heads + h) * rows + row) * width + d);
  }
  [[nodiscard]] double value(std::int64_t b, std::int64_t h, std::int64_t row,
                             std::int64_t d) const {
    return values[index(b, h, row, d)];
  }
  [[nodiscard]] double stored(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t d) {
    const std::size_t n = index(b, h, row, d);
    const auto segment = static_cast<std::size_t>(segments[n]);
    return buffers[segment].get(source.segments.at[segment].element, places[n]);
  }
  [[nodiscard]] plain::Sink sink() const {
    plain::Sink sink;
    sink.width = width;
    sink.segments.count = source.segments.count;
    for (int n = 0; n < sink.segments.count; ++n) {
      const auto& from = source.segments.at[n];
      sink.segments.at[n] = {const_cast<char*>(from.data),
                             from.element,
                             from.begin,
                             from.end,
                             from.batch,
                             from.head,
                             from.row,
                             from.column};
    }
    return sink;
  }
};

struct OperandOptions {
  int segments = 1;
  bool paged = false;
  bool aligned = false;  ///< rows can be read by 16 bytes
  Element element = Element::f32;
  const Operand* like = nullptr;  ///< segments end where its segments end
};

/// Strides of dimensions in a random order with random gaps, and the elements that they need.
inline std::int64_t random_strides(Random& random, bool aligned, const std::int64_t (&sizes)[4],
                                   std::int64_t (&strides)[4]) {
  std::vector<std::size_t> order = {0, 1, 2, 3};
  std::shuffle(order.begin(), order.end() - (aligned || chance(random, 70) ? 1 : 0), random);
  std::int64_t size = chance(random, aligned ? 0 : 20) ? 2 : 1;
  for (std::size_t n = 4; n-- > 0;) {
    strides[order[n]] = size;
    size *= std::max<std::int64_t>(sizes[order[n]], 1);
    if (chance(random, 30)) size += draw(random, 1, 3);
    if (aligned) size = (size + 7) / 8 * 8;
  }
  return size;
}

/// Values where they lie; those of rows that do not count are NaN.
inline Operand random_operand(Random& random, const Side& side, std::int64_t width,
                              const OperandOptions& options) {
  const std::int64_t batch = side.space.shape.batch, rows = side.space.rows();
  Operand x;
  x.heads = side.space.heads();
  x.rows = rows;
  x.width = width;
  const auto count = static_cast<std::size_t>(batch * x.heads * rows * width);
  x.values.assign(count, 0);
  x.places.assign(count, 0);
  x.segments.assign(count, 0);
  x.source.width = width;
  x.source.segments.count = options.segments;
  const std::int64_t pages = options.paged ? batch * (rows + 1) + 3 : 0;
  const std::int64_t page_size = options.paged ? draw(random, 1, 5) : 1;
  std::vector<std::int32_t> listed;
  const std::int64_t columns = ceil_div(std::max<std::int64_t>(rows, 1), page_size);
  if (options.paged) {
    std::vector<std::int32_t> free(static_cast<std::size_t>(pages));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), random);
    listed.assign(free.begin(), free.begin() + batch * columns);
    x.table = buffer_of(listed);
  }
  std::int64_t begin = 0;
  for (int n = 0; n < options.segments; ++n) {
    plain::Segment<const char*>& s = x.source.segments.at[n];
    s.element = options.element;
    s.begin = begin;
    const bool last = n + 1 == options.segments;
    s.end = options.like != nullptr ? options.like->source.segments.at[n].end
            : last                  ? rows
                                    : draw(random, begin, rows);
    const std::int64_t own_rows = side.space.packed ? side.space.total()
                                  : options.paged   ? page_size
                                                    : s.end - begin;
    const std::int64_t sizes[4] = {side.space.packed ? 1
                                   : options.paged   ? pages
                                                     : batch,
                                   x.heads, own_rows, width};
    std::int64_t strides[4];
    const std::int64_t size = random_strides(random, options.aligned, sizes, strides);
    const std::size_t offset = options.aligned || chance(random, 50)
                                   ? 0
                                   : static_cast<std::size_t>(plain::size_of(s.element));
    x.buffers.emplace_back(static_cast<std::size_t>(size * plain::size_of(s.element)), offset);
    Buffer& buffer = x.buffers.back();
    s.data = buffer.at<char>();
    s.batch = side.space.packed || options.paged ? 0 : strides[0];
    s.head = strides[1];
    s.row = strides[2];
    s.column = strides[3];
    if (options.paged)
      x.source.pages = {x.table.at<std::int32_t>(), columns, 1, page_size, pages, strides[0]};
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t h = 0; h < x.heads; ++h)
        for (std::int64_t row = begin; row < std::min(s.end, side.rows_of(b)); ++row)
          for (std::int64_t d = 0; d < width; ++d) {
            std::int64_t at = h * s.head + d * s.column;
            if (options.paged)
              at += listed[static_cast<std::size_t>(b * columns + row / page_size)] * strides[0] +
                    row % page_size * s.row;
            else
              at += b * s.batch + (side.begin[static_cast<std::size_t>(b)] + row - begin) * s.row;
            const std::size_t value = x.index(b, h, row, d);
            x.places[value] = at;
            x.segments[value] = n;
            x.values[value] = row < side.length_of(b) ? rounded(s.element, normal(random)) : NAN;
            buffer.set(s.element, at, x.values[value]);
          }
    buffer.send();
    begin = s.end;
  }
  return x;
}

/// The same places with nothing in them.
inline void poison(Operand& x) {
  for (Buffer& buffer : x.buffers) {
    std::memset(buffer.as<char>(), 0xFF, buffer.bytes());
    buffer.send();
  }
}

}  // namespace fovea::cuda::test
