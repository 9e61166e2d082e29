// Errors of the library as Python exceptions.
#pragma once

#include <string>

#include <fovea/status.h>

namespace fovea::python {

/// Raises what stands for the code: ValueError, NotImplementedError, MemoryError, RuntimeError.
void raise_unless_ok(const Status& status);

/// The value of a Result, or the exception.
template <class T>
T value_of(Result<T>&& result) {
  raise_unless_ok(result.status());
  return std::move(*result);
}

/// ValueError "[fovea] argument: what".
[[noreturn]] void raise_value(const char* argument, const std::string& what);
/// TypeError, likewise.
[[noreturn]] void raise_type(const char* argument, const std::string& what);

}  // namespace fovea::python
