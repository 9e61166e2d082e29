// What a public function that answers with a Status does instead of throwing.
#pragma once

#include <exception>
#include <new>

#include <fovea/status.h>

namespace fovea {

/// f(), a Status or Result; an exception becomes one.
template <class F>
auto guarded(F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "out of host memory");
  } catch (const std::exception& error) {
    return Status(StatusCode::internal, error.what());
  } catch (...) {  // a caller's thread pool may throw anything
    return Status(StatusCode::internal, "unknown exception");
  }
}

}  // namespace fovea
