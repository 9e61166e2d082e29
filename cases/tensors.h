// Tensors that own guarded memory in one of the layouts of cases.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <fovea/tensor.h>

#include "cases/buffer.h"
#include "cases/case.h"
#include "cases/elements.h"

namespace fovea::cases {

struct Tensor {
  std::shared_ptr<Buffer> buffer;
  MutableTensorView view;

  [[nodiscard]] double get(const Index& index) const {
    return load(view.data, view.dtype, offset_of(view, index));
  }
  void set(const Index& index, double value) const {
    store(view.data, view.dtype, offset_of(view, index), value);
  }
  template <class F>  // f(index) -> value
  void fill(F&& f) const {
    for_each_element(view, [&](std::int64_t offset, const Index& index) {
      store(view.data, view.dtype, offset, f(index));
    });
  }
};

/// What a dimension means for layouts.
struct Axes {
  int heads = -1, seq = -1;
};
inline constexpr Axes kDense{1, 2};   ///< [batch, heads, seq, dim]
inline constexpr Axes kPacked{1, 0};  ///< [total, heads, dim]
inline constexpr Axes kPool{2, 1};    ///< [pages, page_size, heads, dim]
inline constexpr Axes kLse{1, 2};     ///< [batch, heads, seq]
inline constexpr Axes kPlain{};       ///< contiguous whatever the layout

/// A poisoned tensor (wide: of zeros). Layouts that do not fit the axes (bshd of a packed tensor)
/// are contiguous; packed_qkv and stride0_kv, which need other tensors, too: see operands.cpp.
Tensor make_tensor(DType dtype, std::vector<std::int64_t> shape, Axes axes = kPlain,
                   Layout layout = Layout::bhsd, bool unaligned = false);

/// Whether all bytes of the tensor's memory that no element of `written` covers are still poison.
bool rest_is_poison(const Tensor& tensor, const MutableTensorView& written);

}  // namespace fovea::cases
