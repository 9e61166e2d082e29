// Errors of the language-model runtime: fovea::Error with a message that says where, what, and the
// value found.
#pragma once

#include <utility>

#include <fmt/core.h>

#include <fovea/status.h>

namespace fovea::lm {

/// Throws fovea::Error of kind `invalid`: "[where] what is wrong; got ...".
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(Status(StatusCode::invalid, fmt::format(format, std::forward<Args>(args)...)));
}

/// Throws fovea::Error of the given kind.
template <class... Args>
[[noreturn]] void fail_as(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(Status(code, fmt::format(format, std::forward<Args>(args)...)));
}

}  // namespace fovea::lm
