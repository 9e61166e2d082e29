// Global memory that several blocks write.
#pragma once

#include "cuda/device/platform.h"

namespace fovea::cuda::FOVEA_WORLD {

#if defined(__CUDACC__)

/// to[0] += x0, to[1] += x1, in global memory, 8-byte aligned: one operation where there is such.
FOVEA_DEVICE void add_pair_to(float* to, float x0, float x1) {
  const std::size_t at = __cvta_generic_to_global(to);
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(at), "f"(x0), "f"(x1)
               : "memory");
#else
  asm volatile(
      "red.relaxed.gpu.global.add.f32 [%0], %1;\n"
      "red.relaxed.gpu.global.add.f32 [%0 + 4], %2;" ::"l"(at),
      "f"(x0), "f"(x1)
      : "memory");
#endif
}
/// to[0 ... 3] += x0 ... x3, 16-byte aligned; likewise.
FOVEA_DEVICE void add_four_to(float* to, float x0, float x1, float x2, float x3) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
                   __cvta_generic_to_global(to)),
               "f"(x0), "f"(x1), "f"(x2), "f"(x3)
               : "memory");
#else
  add_pair_to(to, x0, x1);
  add_pair_to(to + 2, x2, x3);
#endif
}
/// *to += x; what was there before.
FOVEA_DEVICE float atomic_add(float* to, float x) { return atomicAdd(to, x); }
FOVEA_DEVICE std::uint32_t atomic_add(std::uint32_t* to, std::uint32_t x) {
  return atomicAdd(to, x);
}
FOVEA_DEVICE unsigned long long atomic_add(unsigned long long* to, unsigned long long x) {
  return atomicAdd(to, x);
}

/// A word by which blocks take turns: who loads what was stored sees all that was written before.
FOVEA_DEVICE std::uint32_t load_acquire(const std::uint32_t* from) {
  std::uint32_t x;
  asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
  return x;
}
FOVEA_DEVICE void store_release(std::uint32_t* to, std::uint32_t x) {
  asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

#else

template <class T>
T emulated_add(T* to, T x) {
  const T before = *to;
  *to = before + x;
  return before;
}
FOVEA_DEVICE void add_pair_to(float* to, float x0, float x1) {
  emulation::check_aligned(to, 8, "8 bytes of global memory");
  emulated_add(to, x0);
  emulated_add(to + 1, x1);
}
FOVEA_DEVICE void add_four_to(float* to, float x0, float x1, float x2, float x3) {
  emulation::check_aligned(to, 16, "16 bytes of global memory");
  add_pair_to(to, x0, x1);
  add_pair_to(to + 2, x2, x3);
}
FOVEA_DEVICE float atomic_add(float* to, float x) { return emulated_add(to, x); }
FOVEA_DEVICE std::uint32_t atomic_add(std::uint32_t* to, std::uint32_t x) {
  return emulated_add(to, x);
}
FOVEA_DEVICE unsigned long long atomic_add(unsigned long long* to, unsigned long long x) {
  return emulated_add(to, x);
}

/// Blocks run one after the other, so a loop that waits for a later one ends with an error.
FOVEA_DEVICE std::uint32_t load_acquire(const std::uint32_t* from) {
  emulation::poll();
  return *from;
}
FOVEA_DEVICE void store_release(std::uint32_t* to, std::uint32_t x) { *to = x; }

#endif

}  // namespace fovea::cuda::FOVEA_WORLD
