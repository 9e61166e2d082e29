// FOVEA_HD marks functions that are compiled for the host and, under nvcc, for the device.
#pragma once

#ifdef __CUDACC__
#define FOVEA_HD __host__ __device__
#else
#define FOVEA_HD
#endif
