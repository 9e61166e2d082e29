#include "arrays.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include <fovea/device_memory.h>

#include "errors.h"
#include "exchange.h"

namespace fovea::python {
namespace {

using Code = nb::dlpack::dtype_code;

struct DTypeRow {
  DType dtype;
  Code code;
  std::uint8_t bits;
  const char* torch_name;  ///< str() of PyTorch's
};

constexpr std::array kDTypes = {
    DTypeRow{DType::f32, Code::Float, 32, "torch.float32"},
    DTypeRow{DType::f16, Code::Float, 16, "torch.float16"},
    DTypeRow{DType::bf16, Code::Bfloat, 16, "torch.bfloat16"},
    DTypeRow{DType::f64, Code::Float, 64, "torch.float64"},
    DTypeRow{DType::boolean, Code::Bool, 8, "torch.bool"},
    DTypeRow{DType::i32, Code::Int, 32, "torch.int32"},
    DTypeRow{DType::i64, Code::Int, 64, "torch.int64"},
    DTypeRow{DType::i8, Code::Int, 8, "torch.int8"},
};

constexpr int kCpu = 1, kCuda = 2, kCudaHost = 3, kMetal = 8, kCudaManaged = 13;  // DLDeviceType

/// Names of attributes, made once.
struct Names {
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject* shape = PyUnicode_InternFromString("shape");
  PyObject* stride = PyUnicode_InternFromString("stride");
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* is_cpu = PyUnicode_InternFromString("is_cpu");
  PyObject* device = PyUnicode_InternFromString("device");
};

const Names& names() {
  static const Names instance;
  return instance;
}

/// A new reference, or the exception that Python raised.
nb::object taken(PyObject* object) {
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

std::string text_of(nb::handle object) { return nb::str(object).c_str(); }

std::string name_of_type(nb::handle object) { return text_of(nb::inst_name(object)); }

/// PyTorch's dtype objects are few and live as long as the process: looked up by address.
DType torch_dtype(nb::handle dtype, const char* argument) {
  static std::vector<std::pair<PyObject*, DType>> known;
  for (const auto& [object, value] : known)
    if (object == dtype.ptr()) return value;
  const std::string name = text_of(dtype);
  for (const DTypeRow& row : kDTypes) {
    if (name != row.torch_name) continue;
    Py_INCREF(dtype.ptr());
    known.emplace_back(dtype.ptr(), row.dtype);
    return row.dtype;
  }
  raise_type(argument, "no attention is computed in " + name);
}

Device torch_device(nb::handle tensor, const char* argument) {
  if (taken(PyObject_GetAttr(tensor.ptr(), names().is_cpu)).is(nb::bool_(true))) return {};
  const nb::object device = taken(PyObject_GetAttr(tensor.ptr(), names().device));
  const std::string type = text_of(device.attr("type"));
  const nb::object index = device.attr("index");
  const int ordinal = index.is_none() ? 0 : nb::cast<int>(index);
  if (type == "cuda") return {DeviceType::cuda, ordinal};
  if (type == "mps") return {DeviceType::metal, ordinal};
  raise_value(argument, "no memory can be read on device " + text_of(device));
}

/// The integers of a tuple.
int sizes_of(nb::handle tuple, std::array<std::int64_t, kMaxRank>& to, const char* argument) {
  if (!PyTuple_Check(tuple.ptr())) raise_type(argument, "its shape is no tuple");
  const auto count = PyTuple_GET_SIZE(tuple.ptr());
  if (count > kMaxRank)
    raise_value(argument, "at most " + std::to_string(kMaxRank) + " dimensions; got " +
                              std::to_string(count));
  for (Py_ssize_t n = 0; n < count; ++n) {
    to[static_cast<std::size_t>(n)] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple.ptr(), n));
    if (to[static_cast<std::size_t>(n)] == -1 && PyErr_Occurred() != nullptr)
      throw nb::python_error();
  }
  return static_cast<int>(count);
}

MutableTensorView torch_view(nb::handle tensor, const char* argument) {
  MutableTensorView view;
  view.dtype = torch_dtype(taken(PyObject_GetAttr(tensor.ptr(), names().dtype)), argument);
  view.device = torch_device(tensor, argument);
  view.rank = sizes_of(taken(PyObject_GetAttr(tensor.ptr(), names().shape)), view.shape, argument);
  sizes_of(taken(PyObject_CallMethodNoArgs(tensor.ptr(), names().stride)), view.strides, argument);
  const nb::object address = taken(PyObject_CallMethodNoArgs(tensor.ptr(), names().data_ptr));
  view.data = PyLong_AsVoidPtr(address.ptr());
  if (view.data == nullptr && PyErr_Occurred() != nullptr) throw nb::python_error();
  return view;
}

Device dlpack_device(int type, int index, const char* argument) {
  switch (type) {
    case kCpu:
    case kCudaHost:
      return {};
    case kCuda:
    case kCudaManaged:
      return {DeviceType::cuda, index};
    case kMetal:
      return {DeviceType::metal, index};
    default:
      raise_value(argument, "device type " + std::to_string(type) + " of DLPack is not served");
  }
}

std::optional<DType> known_dtype(nb::dlpack::dtype dtype) {
  for (const DTypeRow& row : kDTypes)
    if (dtype.code == static_cast<std::uint8_t>(row.code) && dtype.bits == row.bits &&
        dtype.lanes == 1)
      return row.dtype;
  return std::nullopt;
}

DType dlpack_dtype(nb::dlpack::dtype dtype, const char* argument) {
  if (const std::optional<DType> known = known_dtype(dtype)) return *known;
  raise_type(argument, "no attention is computed in DLPack's dtype code " +
                           std::to_string(dtype.code) + " of " + std::to_string(dtype.bits) +
                           " bits");
}

/// Whether PyTorch described the tensor and it is one that is served; else the slower ways say what
/// is wrong with it.
bool exchanged_view(nb::handle array, const char* argument, MutableTensorView& view) {
  ExchangedTensor found{};
  if (!exchange(array, found) || found.rank > kMaxRank || found.strides == nullptr) return false;
  const std::optional<DType> dtype = known_dtype(found.dtype);
  if (!dtype) return false;
  view.data = static_cast<std::byte*>(found.data) + found.byte_offset;
  view.dtype = *dtype;
  view.device = dlpack_device(found.device_type, found.device_id, argument);
  view.rank = found.rank;
  std::copy_n(found.shape, found.rank, view.shape.begin());
  std::copy_n(found.strides, found.rank, view.strides.begin());
  return true;
}

}  // namespace

TensorView Arrays::read(nb::handle array, const char* argument) {
  return view(array, argument, false);
}

MutableTensorView Arrays::write(nb::handle array, const char* argument) {
  return view(array, argument, true);
}

MutableTensorView Arrays::view(nb::handle array, const char* argument, bool writable) {
  if (array.is_none()) return {};
  if (MutableTensorView view; exchanged_view(array, argument, view)) return view;
  if (PyObject_HasAttr(array.ptr(), names().data_ptr) != 0) return torch_view(array, argument);
  return through_dlpack(array, argument, writable);
}

MutableTensorView Arrays::through_dlpack(nb::handle array, const char* argument, bool writable) {
  nb::ndarray<nb::ro> imported;
  try {
    nb::object source = nb::borrow(array);
    // The producer orders its work before our stream's; 1 is the default stream.
    if (nb::hasattr(array, "__dlpack_device__")) {
      const auto device = nb::cast<nb::tuple>(array.attr("__dlpack_device__")());
      const int type = nb::cast<int>(nb::int_(device[0]));
      if (type == kCuda || type == kCudaManaged) {
        const auto stream = reinterpret_cast<std::uintptr_t>(stream_);
        source = array.attr("__dlpack__")(nb::arg("stream") = stream == 0 ? 1 : stream);
      }
    }
    imported = writable ? nb::ndarray<nb::ro>(nb::cast<nb::ndarray<>>(source))
                        : nb::cast<nb::ndarray<nb::ro>>(source);
  } catch (const nb::cast_error&) {
    raise_type(argument, "expected a" + std::string(writable ? " writable" : "n") +
                             " array or tensor, got " + name_of_type(array));
  }
  if (imported.ndim() > kMaxRank)
    raise_value(argument, "at most " + std::to_string(kMaxRank) + " dimensions; got " +
                              std::to_string(imported.ndim()));
  MutableTensorView result;
  result.data = const_cast<void*>(imported.data());
  result.dtype = dlpack_dtype(imported.dtype(), argument);
  result.device = dlpack_device(imported.device_type(), imported.device_id(), argument);
  result.rank = static_cast<int>(imported.ndim());
  for (std::size_t n = 0; n < imported.ndim(); ++n) {
    result.shape[n] = static_cast<std::int64_t>(imported.shape(n));
    result.strides[n] = imported.stride(n);
  }
  kept_.push_back(std::move(imported));
  return result;
}

DType dtype_of(const std::string& name, const char* argument) {
  for (const DTypeRow& row : kDTypes)
    if (name == name_of(row.dtype)) return row.dtype;
  raise_value(argument, "unknown dtype \"" + name + "\"");
}

nb::ndarray<nb::array_api> new_array(const std::vector<std::int64_t>& shape,
                                     const std::string& dtype, const std::string& device,
                                     int index) {
  if (device != "cpu" && device != "cuda") raise_value("device", "cpu or cuda; got " + device);
  const DType type = dtype_of(dtype, "dtype");
  std::size_t bytes = static_cast<std::size_t>(size_of(type));
  std::vector<std::size_t> sizes;
  for (const std::int64_t size : shape) {
    sizes.push_back(static_cast<std::size_t>(size));
    if (size < 0 || __builtin_mul_overflow(bytes, sizes.back(), &bytes))
      raise_value("shape", "no array has the size " + std::to_string(size));
  }
  const Device where{device == "cpu" ? DeviceType::cpu : DeviceType::cuda, index};
  auto buffer = std::make_unique<DeviceBuffer>();
  raise_unless_ok([&] {
    Result<DeviceBuffer> made = DeviceBuffer::make(where, bytes);
    if (made.ok()) *buffer = std::move(*made);
    return made.status();
  }());
  void* data = buffer->data();
  nb::capsule owner(buffer.release(),
                    [](void* held) noexcept { delete static_cast<DeviceBuffer*>(held); });
  nb::dlpack::dtype element{};
  for (const DTypeRow& row : kDTypes)
    if (row.dtype == type) element = {static_cast<std::uint8_t>(row.code), row.bits, 1};
  return nb::ndarray<nb::array_api>(data, sizes.size(), sizes.data(), owner, nullptr, element,
                                    where.type == DeviceType::cpu ? kCpu : kCuda, index);
}

}  // namespace fovea::python
