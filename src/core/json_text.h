// JSON string literals, for the few reports the library writes itself.
#pragma once

#include <string>
#include <string_view>

#include "contract/format.h"

namespace fovea {

inline std::string json_quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char ch : text) {
    if (ch == '"' || ch == '\\') {
      quoted += '\\';
      quoted += ch;
    } else if (static_cast<unsigned char>(ch) < 0x20) {
      quoted += formatted("\\u{:04x}", static_cast<unsigned>(ch));
    } else {
      quoted += ch;
    }
  }
  return quoted + '"';
}

}  // namespace fovea
