// DLPack's exchange API (1.3): what a C function of the array's library says of its memory, with no
// Python object made on the way. https://dmlc.github.io/dlpack/latest/
#pragma once

#include <cstdint>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

namespace fovea::python {

namespace nb = nanobind;

/// DLTensor. Shape and strides belong to the array.
struct ExchangedTensor {
  void* data;
  std::int32_t device_type, device_id;
  std::int32_t rank;
  nb::dlpack::dtype dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

/// Whether PyTorch (2.10 or later) could describe its tensor; no exception is left. Other libraries
/// are not asked: the API says neither that memory is read-only nor when a stream has written it.
bool exchange(nb::handle tensor, ExchangedTensor& to);

}  // namespace fovea::python
