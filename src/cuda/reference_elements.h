// For the kernel sources of cuda.reference: elements of any float type as f64, and how warps share
// tasks.
#pragma once

#include "contract/plain_rows.h"
#include "contract/reference_formulas.h"
#include "cuda/device/thread.h"
#include "cuda/reference_rows.h"

namespace fovea::cuda::FOVEA_WORLD {

/// work(task), by a warp, for each task; the grid has reference_blocks(tasks).
template <class Work>
FOVEA_DEVICE void for_each_warp_task(std::int64_t tasks, Work&& work) {
  const std::int64_t warps = grid_blocks() * kReferenceWarps;
  for (std::int64_t task = block_index() * kReferenceWarps + warp(); task < tasks; task += warps)
    work(task);
}

FOVEA_DEVICE DType dtype_of(plain::Element element) {
  switch (element) {
    case plain::Element::f64:
      return DType::f64;
    case plain::Element::f16:
      return DType::f16;
    case plain::Element::bf16:
      return DType::bf16;
    default:
      return DType::f32;
  }
}

FOVEA_DEVICE double element_at(const void* data, plain::Element element, std::int64_t n) {
  return fovea::load_element(data, dtype_of(element), n);
}

/// Of a vector, or of one row of a tensor.
FOVEA_DEVICE reference::Elements elements_of(const plain::Floats& x) {
  return {x.data, dtype_of(x.element), 0, x.stride};
}
FOVEA_DEVICE reference::Elements elements_of(const plain::Run<const char*>& row) {
  return {row.data, dtype_of(row.element), 0, row.column};
}

/// Element n of an array of any float type becomes x, rounded once.
FOVEA_DEVICE void store(void* data, plain::Element element, std::int64_t n, double x) {
  reference::store_rounded(data, dtype_of(element), n, x);
}

}  // namespace fovea::cuda::FOVEA_WORLD
