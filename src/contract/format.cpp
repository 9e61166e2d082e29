// The one file with the code of fmt, from its headers: an installed Fovea does not need it.
#define FMT_HEADER_ONLY
#include "contract/format.h"

#include <fmt/format.h>

namespace fovea {

std::string detail::formatted(fmt::string_view text, fmt::format_args args) {
  return fmt::vformat(text, args);
}

std::string list_text(std::span<const std::int64_t> sizes) {
  return fmt::format("[{}]", fmt::join(sizes, ", "));
}

}  // namespace fovea
