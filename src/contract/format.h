// Text with "{}" placeholders. The code of fmt is compiled in format.cpp alone: it would take every
// file that formats something seconds.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <fmt/core.h>

namespace fovea {

namespace detail {
std::string formatted(fmt::string_view text, fmt::format_args args);
}

/// fmt::format for numbers and strings; the text is checked when it is compiled.
template <class... Args>
std::string formatted(fmt::format_string<Args...> text, Args&&... args) {
  return detail::formatted(text, fmt::make_format_args(args...));
}

/// "[2, 3, 5]"
std::string list_text(std::span<const std::int64_t> sizes);

}  // namespace fovea
