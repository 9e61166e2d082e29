// Python arrays as views of their memory: PyTorch's tensors by DLPack's exchange API, or by their
// attributes where a PyTorch has none, and everybody else's through DLPack's capsules.
#pragma once

#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <fovea/tensor.h>

namespace fovea::python {

namespace nb = nanobind;

/// Makes views, and keeps the memory of those alive that came through DLPack.
class Arrays {
 public:
  /// Device memory is handed over in the order of this stream; null: the default stream.
  explicit Arrays(void* stream = nullptr) : stream_(stream) {}

  /// A view that is only read; absent for None. `argument` names it in errors.
  TensorView read(nb::handle array, const char* argument);
  /// A view that is written: read-only arrays are refused.
  MutableTensorView write(nb::handle array, const char* argument);

 private:
  MutableTensorView view(nb::handle array, const char* argument, bool writable);
  MutableTensorView through_dlpack(nb::handle array, const char* argument, bool writable);

  void* stream_;
  std::vector<nb::ndarray<nb::ro>> kept_;
};

/// "f32" and the like; an error that names the argument when there is no such dtype.
DType dtype_of(const std::string& name, const char* argument);

/// New memory of a device as an object that exports DLPack, for arrays that cannot be written.
nb::ndarray<nb::array_api> new_array(const std::vector<std::int64_t>& shape,
                                     const std::string& dtype, const std::string& device,
                                     int index);

}  // namespace fovea::python
