#include "cases/tensors.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace fovea::cases {
namespace {

/// Distance of heads in the wide layout: beyond 32-bit element offsets.
constexpr std::int64_t kWideStride = (std::int64_t{1} << 31) + 64;

using Shape = std::vector<std::int64_t>;

/// Strides of a dense tensor whose dimensions lie in memory in the given order, slowest first.
Shape strides_in_order(const Shape& sizes, const std::vector<std::size_t>& order) {
  Shape strides(sizes.size());
  std::int64_t stride = 1;
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    strides[*it] = stride;
    stride *= std::max<std::int64_t>(sizes[*it], 1);
  }
  return strides;
}

}  // namespace

Tensor make_tensor(DType dtype, std::vector<std::int64_t> shape, Axes axes, Layout layout,
                   bool unaligned) {
  const std::size_t rank = shape.size();
  if (axes.seq < 0) layout = Layout::bhsd;
  std::vector<std::size_t> order(rank);
  std::iota(order.begin(), order.end(), std::size_t{0});
  Shape sizes = shape;
  const auto heads = static_cast<std::size_t>(axes.heads), seq = static_cast<std::size_t>(axes.seq);
  if (layout == Layout::bshd && heads < seq && rank == 4) std::swap(order[heads], order[seq]);
  if (layout == Layout::padded) {
    sizes[rank - 1] += 3;
    sizes[rank - 2] += 1;
  }
  Shape strides = strides_in_order(sizes, order);
  if (layout == Layout::last2) {
    for (std::int64_t& stride : strides) stride *= 2;
  }
  const bool wide = layout == Layout::wide && rank >= 3;
  if (wide) strides[heads] = kWideStride;

  const bool empty = std::any_of(shape.begin(), shape.end(), [](auto n) { return n == 0; });
  std::int64_t span = empty ? 0 : 1;  // elements from the first to the last
  for (std::size_t d = 0; d < rank && !empty; ++d) span += (shape[d] - 1) * strides[d];

  Tensor tensor;
  tensor.view.dtype = dtype;
  tensor.view.rank = static_cast<std::int32_t>(rank);
  std::copy(shape.begin(), shape.end(), tensor.view.shape.begin());
  std::copy(strides.begin(), strides.end(), tensor.view.strides.begin());
  const auto bytes = static_cast<std::size_t>(span * size_of(dtype));
  tensor.buffer = std::make_shared<Buffer>(
      wide && !empty ? Buffer::sparse(bytes)
                     : Buffer(bytes, unaligned ? static_cast<std::size_t>(size_of(dtype)) : 0));
  if (empty) return tensor;
  std::byte* first = tensor.buffer->data();
  if (layout == Layout::reversed) {
    first += (shape[seq] - 1) * strides[seq] * size_of(dtype);
    tensor.view.strides[seq] = -strides[seq];
  }
  tensor.view.data = first;
  return tensor;
}

bool rest_is_poison(const Tensor& tensor, const MutableTensorView& written) {
  const Buffer& buffer = *tensor.buffer;
  if (buffer.is_sparse()) return true;
  std::vector<unsigned char> covered(buffer.bytes());
  const std::int64_t size = size_of(written.dtype);
  const std::int64_t first =
      written.data == nullptr ? 0 : static_cast<std::byte*>(written.data) - buffer.data();
  const RowShape row = row_shape(written);
  for_each_row(written, [&](const Index& index) {
    std::int64_t at = first + offset_of(written, index) * size;
    // Elements that adjoin are one piece.
    const std::int64_t pieces = row.stride == 1 ? 1 : row.size;
    const std::int64_t bytes = row.stride == 1 ? row.size * size : size;
    for (std::int64_t n = 0; n < pieces; ++n, at += row.stride * size) {
      std::fill_n(covered.begin() + at, bytes, static_cast<unsigned char>(1));
    }
  });
  for (auto gap = covered.begin(); (gap = std::find(gap, covered.end(), 0)) != covered.end();
       ++gap) {
    if (buffer.data()[gap - covered.begin()] != kPoison) return false;
  }
  return true;
}

}  // namespace fovea::cases
