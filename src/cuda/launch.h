// Entry: a kernel that can be launched, and how a kernel source makes one.
//
//   struct ScaleArgs { float* x; std::int64_t count; float by; };      // plain data, at most 4 KB
//   namespace FOVEA_WORLD {
//   FOVEA_DEVICE void scale(const ScaleArgs& args) { ... }
//   FOVEA_CUDA_ENTRY(scale_entry, ScaleArgs, 128, 1, scale)            // a const Entry
//   }
//
// A kernel's header declares what its source exports for both worlds, FOVEA_CUDA_EXPORT(const
// Entry* scale_kernel()), and host code asks for the world in use: FOVEA_CUDA_PICK(scale_kernel)().
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace fovea::cuda {

/// A kernel with its block size: for the device, or for the emulation.
struct Entry {
  const char* name;
  int threads;                         ///< of a block; a multiple of 32
  const void* kernel;                  ///< __global__ function, null in the emulation
  void (*emulated)(const void* args);  ///< body of one thread, null on the device
};

/// Threads come from the Entry.
struct LaunchShape {
  std::int64_t blocks = 0;       ///< 0: nothing is launched
  std::size_t shared_bytes = 0;  ///< dynamic shared memory of a block
};

inline constexpr std::size_t kMostArgumentBytes = 4096;

/// Whether runtime() is the emulated one.
bool emulating();

}  // namespace fovea::cuda

/// Declares a function of a kernel source in both worlds.
#define FOVEA_CUDA_EXPORT(...) \
  namespace real {             \
  __VA_ARGS__;                 \
  }                            \
  namespace emulated {         \
  __VA_ARGS__;                 \
  }                            \
  static_assert(true, "wants a semicolon")

/// The function `name` of the world that runtime() launches in.
#if FOVEA_CUDA_REAL && FOVEA_CUDA_EMULATED
#define FOVEA_CUDA_PICK(name) \
  (::fovea::cuda::emulating() ? &::fovea::cuda::emulated::name : &::fovea::cuda::real::name)
#elif FOVEA_CUDA_REAL
#define FOVEA_CUDA_PICK(name) (&::fovea::cuda::real::name)
#else
#define FOVEA_CUDA_PICK(name) (&::fovea::cuda::emulated::name)
#endif

#ifdef FOVEA_WORLD

#include "cuda/device/platform.h"

namespace fovea::cuda::FOVEA_WORLD {

#if defined(__CUDACC__)

template <class Args, int kThreads, int kMinBlocks, void (*kBody)(const Args&)>
__global__ void __launch_bounds__(kThreads, kMinBlocks) kernel(const __grid_constant__ Args args) {
  kBody(args);
}

/// The Entry of a body, for bodies that are instances of templates: `entry_of<...>("name")`.
template <class Args, int kThreads, int kMinBlocks, void (*kBody)(const Args&)>
Entry entry_of(const char* name) {
  static_assert(std::is_trivially_copyable_v<Args> && sizeof(Args) <= kMostArgumentBytes);
  static_assert(kThreads % 32 == 0 && kThreads <= 1024);
  return {name, kThreads, reinterpret_cast<const void*>(&kernel<Args, kThreads, kMinBlocks, kBody>),
          nullptr};
}

#else

template <class Args, int kThreads, int kMinBlocks, void (*kBody)(const Args&)>
Entry entry_of(const char* name) {
  static_assert(std::is_trivially_copyable_v<Args> && sizeof(Args) <= kMostArgumentBytes);
  static_assert(kThreads % 32 == 0 && kThreads <= 1024);
  return {name, kThreads, nullptr,
          [](const void* args) { kBody(*static_cast<const Args*>(args)); }};
}

#endif

}  // namespace fovea::cuda::FOVEA_WORLD

/// `const Entry name` that runs `body(const Args&)` in blocks of `threads`, of which a
/// multiprocessor should hold `min_blocks`. The body may be an instance of a template.
#define FOVEA_CUDA_ENTRY(name, Args, threads, min_blocks, ...) \
  const ::fovea::cuda::Entry name =                            \
      ::fovea::cuda::FOVEA_WORLD::entry_of<Args, threads, min_blocks, __VA_ARGS__>(#name);

#endif  // FOVEA_WORLD
