// Which world a kernel source is compiled for. The build defines FOVEA_WORLD as `real` (nvcc) or
// `emulated` (any C++ compiler); device code lives in namespace fovea::cuda::FOVEA_WORLD, so that
// one program can hold both.
#pragma once

#include <cstddef>
#include <cstdint>

#ifndef FOVEA_WORLD
#error "FOVEA_WORLD: device headers are for kernel sources, which the build compiles for a world."
#endif

#if defined(__CUDACC__)
#define FOVEA_DEVICE __device__ __forceinline__
#define FOVEA_UNROLL _Pragma("unroll")
#else
#include "cuda/emulation.h"
#define FOVEA_DEVICE inline
#define FOVEA_UNROLL
#endif
