// Copies of 16 bytes (8 of global memory, too): global memory to and from registers, and
// asynchronously to shared memory.
//
// An asynchronous copy has arrived, for the thread that issued it, behind the copy_wait that covers
// its group, and for other threads behind a barrier after that. The emulation puts NaN in its
// place when it is issued and lets it arrive as late as it may.
#pragma once

#include "cuda/device/platform.h"
#include "cuda/device/shared.h"

namespace fovea::cuda::FOVEA_WORLD {

struct alignas(16) Words4 {
  std::uint32_t w[4];
};
struct Floats2 {
  float x0, x1;
};

#if defined(__CUDACC__)

FOVEA_DEVICE Words4 load_16(const void* global) {
  const uint4 x = *static_cast<const uint4*>(global);
  return {{x.x, x.y, x.z, x.w}};
}
FOVEA_DEVICE void store_16(void* global, Words4 x) {
  *static_cast<uint4*>(global) = make_uint4(x.w[0], x.w[1], x.w[2], x.w[3]);
}
FOVEA_DEVICE Floats2 load_8(const void* global) {
  const float2 x = *static_cast<const float2*>(global);
  return {x.x, x.y};
}
FOVEA_DEVICE void store_8(void* global, float x0, float x1) {
  *static_cast<float2*>(global) = make_float2(x0, x1);
}

/// to[index ...] = 16 bytes of `from`, or zeros where not valid; `from` is then not touched.
template <class T>
FOVEA_DEVICE void copy_async_16(Shared<T> to, int index, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(to.address(index)),
               "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0)
               : "memory");
}
/// What was issued since the last call is a group.
FOVEA_DEVICE void copy_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
/// Waits for all groups but the latest kPending.
template <int kPending>
FOVEA_DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

#else

FOVEA_DEVICE Words4 load_16(const void* global) {
  emulation::check_aligned(global, 16, "16 bytes of global memory");
  return *static_cast<const Words4*>(global);
}
FOVEA_DEVICE void store_16(void* global, Words4 x) {
  emulation::check_aligned(global, 16, "16 bytes of global memory");
  *static_cast<Words4*>(global) = x;
}
FOVEA_DEVICE Floats2 load_8(const void* global) {
  emulation::check_aligned(global, 8, "8 bytes of global memory");
  return {static_cast<const float*>(global)[0], static_cast<const float*>(global)[1]};
}
FOVEA_DEVICE void store_8(void* global, float x0, float x1) {
  emulation::check_aligned(global, 8, "8 bytes of global memory");
  static_cast<float*>(global)[0] = x0;
  static_cast<float*>(global)[1] = x1;
}

template <class T>
void copy_async_16(Shared<T> to, int index, const void* from, bool valid) {
  emulation::copy_issue(to.range(index, static_cast<int>(16 / sizeof(T))), from, valid);
}
FOVEA_DEVICE void copy_commit() { emulation::copy_commit(); }
template <int kPending>
void copy_wait() {
  emulation::copy_wait(kPending);
}

#endif

}  // namespace fovea::cuda::FOVEA_WORLD
