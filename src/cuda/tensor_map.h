// How the copy engine of sm_90 sees a tensor: up to four dimensions, of which it copies boxes.
//
// Made on the host for each launch (Runtime::encode) and passed in the kernel's arguments; what the
// words mean is the driver's affair, or the emulation's.
#pragma once

#include <cstddef>
#include <cstdint>

#include <fovea/status.h>

namespace fovea::cuda {

struct alignas(128) TensorMap {
  std::uint64_t words[16];
};

enum class TensorElement : std::uint8_t { bf16, f16, f32 };

/// A tensor and the box that one copy takes of it, innermost dimension first. A box's elements lie
/// one after the other in shared memory, its rows of 128 bytes swizzled: of an address, bits 7 to 9
/// are added, without carry, to bits 4 to 6. What of a box is beyond the tensor is read as zeros,
/// and is not written, but for the rest of a row's last 16 bytes, which is.
struct TensorBox {
  const void* data = nullptr;  ///< 16-byte aligned
  TensorElement element = TensorElement::bf16;
  std::int64_t sizes[4] = {1, 1, 1, 1};
  std::int64_t strides[4] = {1, 0, 0, 0};  ///< in elements; the first is 1; multiples of 16 bytes
  int box[4] = {1, 1, 1, 1};               ///< the first is 128 bytes
};

inline constexpr std::int64_t element_bytes(TensorElement element) {
  return element == TensorElement::f32 ? 4 : 2;
}

/// What the driver would refuse without a reason.
Status check_box(const TensorBox& box);

}  // namespace fovea::cuda
