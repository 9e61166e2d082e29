// A tensor as files describe it, and one held in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <fovea/status.h>
#include <fovea/tensor.h>

namespace fovea::io {

/// dtype, dimensions and memory order of a stored tensor.
struct ArrayInfo {
  DType dtype = DType::none;
  std::vector<std::int64_t> shape;
  bool column_major = false;  ///< Fortran order: the first dimension is contiguous
};

/// A tensor that owns its memory.
struct Array {
  ArrayInfo info;
  std::vector<std::byte> data;
};

/// Bytes of a dense tensor; empty on a negative dimension or 64-bit overflow.
std::optional<std::uint64_t> byte_count(DType dtype, const std::vector<std::int64_t>& shape);

/// "[2, 3, 4]"
std::string to_string(const std::vector<std::int64_t>& shape);

/// A view of the array's memory; fails for more than kMaxRank dimensions.
Result<MutableTensorView> view_of(Array& array);

/// Zeroed memory for a row-major tensor; fails on overflow or when memory is short.
Result<Array> make_array(DType dtype, std::vector<std::int64_t> shape);

}  // namespace fovea::io
