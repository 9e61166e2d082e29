// Exit codes and the form of errors, the same for every command.
#pragma once

#include <cstdio>
#include <string>

#include <fmt/core.h>

namespace fovea::cli {

inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;
inline constexpr int kUsage = 2;

/// Prints one line on stderr, as far as that can be written to, and returns `code`.
inline int complain(const std::string& what, int code) {
  std::fputs(fmt::format("fovea: {}\n", what).c_str(), stderr);
  return code;
}
inline int complain(const char* command, const std::string& what, int code) {
  std::fputs(fmt::format("fovea {}: {}\n", command, what).c_str(), stderr);
  return code;
}

}  // namespace fovea::cli
