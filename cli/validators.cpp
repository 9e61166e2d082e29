#include "cli/validators.h"

#include <cerrno>
#include <cstdlib>

#include <fmt/format.h>

namespace fovea::cli {
namespace {

/// Reads all of `text` with one of the C library's functions, which CLI11 uses too.
template <class Value, class Read>
bool read_all(const std::string& text, Value& value, Read read) {
  char* end = nullptr;
  errno = 0;
  value = read(text.c_str(), &end);
  return !text.empty() && end == text.c_str() + text.size() && errno == 0;
}

std::string wrong(const std::string& text, const std::string& description) {
  return fmt::format("'{}' is not {}", text, description);
}

}  // namespace

CLI::Validator at_least(std::int64_t least) {
  const std::string description = fmt::format("INT >= {}", least);
  return {[=](std::string& text) {
            long long value = 0;
            const bool whole = read_all(text, value, [](const char* from, char** end) {
              return std::strtoll(from, end, 0);
            });
            return whole && value >= least ? "" : wrong(text, description);
          },
          description};
}

CLI::Validator seed_value() {
  const std::string description = "UINT < 2^64";
  return {[=](std::string& text) {
            unsigned long long value = 0;
            const bool whole = read_all(text, value, [](const char* from, char** end) {
              return std::strtoull(from, end, 0);
            });
            return whole && text.find('-') == std::string::npos ? "" : wrong(text, description);
          },
          description};
}

CLI::Validator number(const std::string& description, bool (*holds)(double)) {
  return {[=](std::string& text) {
            double value = 0;
            const bool read = read_all(
                text, value, [](const char* from, char** end) { return std::strtod(from, end); });
            return read && holds(value) ? "" : wrong(text, description);
          },
          description};
}

}  // namespace fovea::cli
