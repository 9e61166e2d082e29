// Barriers of sm_90 in shared memory, which count arrivals and bytes, and barriers by number for
// some warps of a block.
//
// An Mbarrier goes through phases, 0, 1, 2 and so on. A phase ends when as many arrivals have been
// counted as it was initialised with, and all bytes have come that were announced. wait(parity)
// waits for the end of the current phase if that has this parity; if not, for nothing: so a
// consumer begins with parity 0, and who waits for a place to become free with 1.
#pragma once

#include "cuda/device/platform.h"
#include "cuda/device/shared.h"

#if defined(FOVEA_CUDA_SPIN_LIMIT)
#include <cstdio>
#endif

namespace fovea::cuda::FOVEA_WORLD {

struct Mbarrier {
  std::uint64_t state;
};

#if defined(__CUDACC__)

FOVEA_DEVICE void barrier_init(Shared<Mbarrier> of, int n, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(of.address(n)), "r"(arrivals)
               : "memory");
}
/// Behind the last barrier_init, before the block's barrier.
FOVEA_DEVICE void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

FOVEA_DEVICE void barrier_arrive(Shared<Mbarrier> of, int n) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(of.address(n)) : "memory");
}
/// Arrives, and announces bytes that copies will bring.
FOVEA_DEVICE void barrier_arrive_expecting(Shared<Mbarrier> of, int n, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(of.address(n)),
               "r"(bytes)
               : "memory");
}

/// FOVEA_CUDA_SPIN_LIMIT, where the build defines it, is after how many looks a wait ends the
/// kernel with the place where it stood, for finding what hangs.
FOVEA_DEVICE void barrier_wait(Shared<Mbarrier> of, int n, int parity,
                               [[maybe_unused]] int line = __builtin_LINE()) {
#if defined(FOVEA_CUDA_SPIN_LIMIT)
  for (int look = 0;; ++look) {
    std::uint32_t done;
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(of.address(n)), "r"(parity)
        : "memory");
    if (done != 0) return;
    if (look == FOVEA_CUDA_SPIN_LIMIT) {
      printf("line %d: block %d, thread %d waits for mbarrier %d, parity %d\n", line,
             static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x), n, parity);
      __trap();
    }
  }
#else
  asm volatile(
      "{\n.reg .pred p;\n"
      "AGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra DONE;\n"
      "bra AGAIN;\n"
      "DONE:\n}\n" ::"r"(of.address(n)),
      "r"(parity)
      : "memory");
#endif
}

/// Meets the other threads at barrier `number` (1 to 15), whole warps, `threads` in all; those that
/// only arrive do not wait.
FOVEA_DEVICE void named_barrier_sync(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
FOVEA_DEVICE void named_barrier_arrive(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/// What this thread wrote to shared memory is seen by copies and products issued later, by it or by
/// who meets it behind this.
FOVEA_DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// From here on, threads of the warp have kCount registers each. All four warps of a group of 128
/// threads must come here.
template <int kCount>
FOVEA_DEVICE void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
FOVEA_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

#else

FOVEA_DEVICE void barrier_init(Shared<Mbarrier> of, int n, int arrivals) {
  emulation::mbarrier_init(of.range(n, 1), arrivals);
}
FOVEA_DEVICE void fence_barrier_init() {}
FOVEA_DEVICE void barrier_arrive(Shared<Mbarrier> of, int n) {
  emulation::mbarrier_arrive(of.range(n, 1), 0);
}
FOVEA_DEVICE void barrier_arrive_expecting(Shared<Mbarrier> of, int n, int bytes) {
  emulation::mbarrier_arrive(of.range(n, 1), bytes);
}
FOVEA_DEVICE void barrier_wait(Shared<Mbarrier> of, int n, int parity,
                               int line = __builtin_LINE()) {
  emulation::mbarrier_wait(of.range(n, 1), parity, line);
}
FOVEA_DEVICE void named_barrier_sync(int number, int threads) {
  emulation::named_barrier(number, threads, true);
}
FOVEA_DEVICE void named_barrier_arrive(int number, int threads) {
  emulation::named_barrier(number, threads, false);
}
FOVEA_DEVICE void fence_async() { emulation::fence_async(); }
template <int kCount>
void keep_registers() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
}
template <int kCount>
void take_registers() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
}

#endif

}  // namespace fovea::cuda::FOVEA_WORLD
