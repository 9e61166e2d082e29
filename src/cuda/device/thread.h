// Who a thread is, and how the threads of a block and the lanes of a warp meet. Blocks and grids
// have one dimension. Warp operations need all 32 lanes.
#pragma once

#include "cuda/device/platform.h"

namespace fovea::cuda::FOVEA_WORLD {

#if defined(__CUDACC__)

FOVEA_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
FOVEA_DEVICE int block_threads() { return static_cast<int>(blockDim.x); }
FOVEA_DEVICE std::int64_t block_index() { return static_cast<std::int64_t>(blockIdx.x); }
FOVEA_DEVICE std::int64_t grid_blocks() { return static_cast<std::int64_t>(gridDim.x); }

/// All threads of the block that have not ended meet here.
FOVEA_DEVICE void barrier() { __syncthreads(); }
/// A barrier that says whether the value was true in any thread.
FOVEA_DEVICE bool barrier_any(bool value) { return __syncthreads_or(value) != 0; }
FOVEA_DEVICE void warp_barrier() { __syncwarp(); }
/// What this thread wrote before is seen, by whoever sees what it writes afterwards.
FOVEA_DEVICE void fence() { __threadfence(); }

template <class T>
FOVEA_DEVICE T shuffle(T value, int from_lane) {
  return __shfl_sync(0xFFFFFFFFu, value, from_lane);
}
template <class T>
FOVEA_DEVICE T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
}
FOVEA_DEVICE std::uint32_t ballot(bool value) { return __ballot_sync(0xFFFFFFFFu, value); }
FOVEA_DEVICE bool any(bool value) { return __any_sync(0xFFFFFFFFu, value) != 0; }
FOVEA_DEVICE bool every(bool value) { return __all_sync(0xFFFFFFFFu, value) != 0; }

/// x. What is computed from it is computed where that stands, and not before a loop around it,
/// which would cost registers in the loop: for seldom-used branches.
FOVEA_DEVICE int fresh(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

#else

FOVEA_DEVICE int thread_index() { return emulation::here.thread; }
FOVEA_DEVICE int block_threads() { return emulation::here.threads; }
FOVEA_DEVICE std::int64_t block_index() { return emulation::here.block; }
FOVEA_DEVICE std::int64_t grid_blocks() { return emulation::here.blocks; }

/// The place of the call goes along, since threads that meet at different barriers are a defect.
FOVEA_DEVICE void barrier(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulation::barrier(file, line);
}
FOVEA_DEVICE bool barrier_any(bool value, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
  static thread_local bool some;  // a block's threads are all of one thread of the host
  barrier(file, line);
  if (thread_index() == 0) some = false;
  barrier(file, line);
  if (value) some = true;
  barrier(file, line);
  return some;
}
FOVEA_DEVICE void warp_barrier() { emulation::warp_barrier(); }
FOVEA_DEVICE void fence() {}
FOVEA_DEVICE int fresh(int x) { return x; }

template <class T>
FOVEA_DEVICE T shuffle(T value, int from_lane) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  T result;
  emulation::shuffle(&result, &value, sizeof(T), from_lane & 31);
  return result;
}
template <class T>
FOVEA_DEVICE T shuffle_xor(T value, int mask) {
  return shuffle(value, (thread_index() & 31) ^ mask);
}
FOVEA_DEVICE std::uint32_t ballot(bool value) { return emulation::ballot(value); }
FOVEA_DEVICE bool any(bool value) { return emulation::ballot(value) != 0; }
FOVEA_DEVICE bool every(bool value) { return emulation::ballot(value) == 0xFFFFFFFFu; }

#endif

FOVEA_DEVICE int lane() { return thread_index() & 31; }
FOVEA_DEVICE int warp() { return thread_index() >> 5; }

/// Over the lanes of a warp, in one order; the same in each.
FOVEA_DEVICE double sum_warp(double x) {
  for (int mask = 16; mask > 0; mask >>= 1) x += shuffle_xor(x, mask);
  return x;
}

}  // namespace fovea::cuda::FOVEA_WORLD
