#include "errors.h"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace fovea::python {
namespace {

PyObject* exception_of(StatusCode code) {
  switch (code) {
    case StatusCode::invalid:
      return PyExc_ValueError;
    case StatusCode::unsupported:
      return PyExc_NotImplementedError;
    case StatusCode::out_of_memory:
      return PyExc_MemoryError;
    default:
      return PyExc_RuntimeError;
  }
}

[[noreturn]] void raise(PyObject* type, const std::string& message) {
  PyErr_SetString(type, message.c_str());
  throw nb::python_error();
}

}  // namespace

void raise_unless_ok(const Status& status) {
  if (!status.ok()) raise(exception_of(status.code()), status.message());
}

void raise_value(const char* argument, const std::string& what) {
  raise(PyExc_ValueError, std::string("[fovea] ") + argument + ": " + what);
}

void raise_type(const char* argument, const std::string& what) {
  raise(PyExc_TypeError, std::string("[fovea] ") + argument + ": " + what);
}

}  // namespace fovea::python
