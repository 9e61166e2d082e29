// FOVEA_HD marks functions that are compiled for the host and, under nvcc, for the device.
#pragma once

// FOVEA_HD_INLINE besides leaves no copy of its own behind: sources that are compiled for different
// instruction sets can share what is marked so.
#ifdef __CUDACC__
#define FOVEA_HD __host__ __device__
#define FOVEA_HD_INLINE __host__ __device__ __forceinline__
#else
#define FOVEA_HD
#define FOVEA_HD_INLINE inline __attribute__((always_inline))
#endif
