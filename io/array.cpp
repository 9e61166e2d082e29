#include "io/array.h"

#include <new>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace fovea::io {

std::optional<std::uint64_t> byte_count(DType dtype, const std::vector<std::int64_t>& shape) {
  auto bytes = static_cast<std::uint64_t>(size_of(dtype));
  bool zero = false;
  for (const std::int64_t dim : shape) {
    if (dim < 0) return std::nullopt;
    // A later zero must not hide an overflow of the strides.
    if (dim == 0) {
      zero = true;
    } else if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dim), &bytes)) {
      return std::nullopt;
    }
  }
  if (bytes > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
  return zero ? 0 : bytes;
}

std::string to_string(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Result<MutableTensorView> view_of(Array& array) {
  const std::vector<std::int64_t>& shape = array.info.shape;
  if (shape.size() > static_cast<std::size_t>(kMaxRank)) {
    return Status(StatusCode::invalid, fmt::format("a tensor has at most {} dimensions; got {}",
                                                   kMaxRank, to_string(shape)));
  }
  MutableTensorView view;
  view.data = array.data.empty() ? nullptr : array.data.data();
  view.dtype = array.info.dtype;
  view.rank = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t n = 0; n < shape.size(); ++n) {
    const std::size_t i = array.info.column_major ? n : shape.size() - 1 - n;
    view.shape[i] = shape[i];
    view.strides[i] = stride;
    if (shape[i] != 0) stride *= shape[i];
  }
  return view;
}

Result<Array> make_array(DType dtype, std::vector<std::int64_t> shape) {
  const std::optional<std::uint64_t> bytes = byte_count(dtype, shape);
  if (!bytes) {
    return Status(StatusCode::invalid,
                  fmt::format("the shape {} overflows or is negative", to_string(shape)));
  }
  Array array;
  array.info = {dtype, std::move(shape), false};
  try {
    array.data.resize(*bytes);
  } catch (const std::exception&) {
    return Status(StatusCode::out_of_memory, fmt::format("no memory for {} bytes (shape {})",
                                                         *bytes, to_string(array.info.shape)));
  }
  return array;
}

}  // namespace fovea::io
