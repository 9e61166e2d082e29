// Strict reading of JSON objects from files.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace fovea::lm {

/// Parses a JSON object. Throws fovea::Error, "[where] ...", on anything else: invalid JSON, a key
/// given twice, nesting deeper than 16.
nlohmann::json parse_json_object(std::string_view text, const std::string& where);

/// A value as it may stand in a message: its text, cut at 80 bytes.
std::string brief(const nlohmann::json& value);

/// Takes typed fields out of a JSON object. A missing field, another type, or (at the end) a field
/// that nobody took throws fovea::Error that names it.
class JsonFields {
 public:
  /// `object` must outlive this.
  JsonFields(const nlohmann::json& object, std::string where);

  [[nodiscard]] bool has(const char* key) const { return json_.contains(key); }
  const nlohmann::json& any(const char* key);
  std::int64_t integer(const char* key);
  double number(const char* key);  ///< finite
  bool boolean(const char* key);
  std::string text(const char* key);
  /// An unsigned 64-bit number written as a decimal string, which every JSON reader keeps exact.
  std::uint64_t unsigned_text(const char* key);
  const nlohmann::json& object(const char* key);
  void refuse_unknown() const;

 private:
  const nlohmann::json& json_;
  std::string where_;
  std::set<std::string> taken_;
};

}  // namespace fovea::lm
