// NumPy's .npy files, versions 1 to 3.
// Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <string>

#include <fovea/status.h>
#include <fovea/tensor.h>

#include "io/array.h"
#include "io/atomic_file.h"

namespace fovea::io {

/// Reads and checks the header only: the data's size must be exactly what it promises.
Result<ArrayInfo> read_npy_info(const std::string& path);

/// Reads a whole file. Little-endian f2, f4, f8, b1, i1, i4 and i8; Fortran order becomes strides.
Result<Array> read_npy(const std::string& path);

/// Whether .npy has a type for it (bf16 has none).
bool npy_can_hold(DType dtype);

/// A whole file of version 1 that only lacks its commit(). `data` is dense in the order that `info`
/// tells.
Result<AtomicFile> stage_npy(const std::string& path, const ArrayInfo& info, const void* data);

/// Writes version 1, atomically.
Status write_npy(const std::string& path, const ArrayInfo& info, const void* data);

}  // namespace fovea::io
