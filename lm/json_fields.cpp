#include "lm/json_fields.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "lm/error.h"

namespace fovea::lm {

using nlohmann::json;

std::string brief(const json& value) {
  constexpr std::size_t kLongest = 80;
  std::string text = value.dump();
  if (text.size() > kLongest) text.replace(kLongest, std::string::npos, "...");
  return text;
}

json parse_json_object(std::string_view text, const std::string& where) {
  constexpr int kDeepest = 16;
  std::vector<std::set<std::string>> keys;
  const json::parser_callback_t check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kDeepest) fail("[{}] the JSON is nested deeper than {}", where, kDeepest);
    if (event == json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) fail("[{}] the key '{}' is given twice", where, key);
    }
    return true;
  };
  json result;
  try {
    result = json::parse(text.begin(), text.end(), check);
  } catch (const json::exception& error) {
    fail("[{}] invalid JSON: {}", where, error.what());
  }
  if (!result.is_object()) {
    fail("[{}] a JSON object is wanted; got {}", where, result.type_name());
  }
  return result;
}

JsonFields::JsonFields(const json& object, std::string where)
    : json_(object), where_(std::move(where)) {
  if (!json_.is_object()) fail("[{}] a JSON object is wanted; got {}", where_, json_.type_name());
}

const json& JsonFields::any(const char* key) {
  const auto found = json_.find(key);
  if (found == json_.end()) fail("[{}] '{}' is missing", where_, key);
  taken_.insert(key);
  return *found;
}

std::int64_t JsonFields::integer(const char* key) {
  const json& value = any(key);
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() &&
                      value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max());
  if (!fits) fail("[{}] '{}' must be a 64-bit integer; got {}", where_, key, brief(value));
  return value.get<std::int64_t>();
}

double JsonFields::number(const char* key) {
  const json& value = any(key);
  if (!value.is_number() || !std::isfinite(value.get<double>())) {
    fail("[{}] '{}' must be a number; got {}", where_, key, brief(value));
  }
  return value.get<double>();
}

bool JsonFields::boolean(const char* key) {
  const json& value = any(key);
  if (!value.is_boolean()) {
    fail("[{}] '{}' must be true or false; got {}", where_, key, brief(value));
  }
  return value.get<bool>();
}

std::string JsonFields::text(const char* key) {
  const json& value = any(key);
  if (!value.is_string()) fail("[{}] '{}' must be a string; got {}", where_, key, brief(value));
  return value.get<std::string>();
}

std::uint64_t JsonFields::unsigned_text(const char* key) {
  const std::string digits = text(key);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    fail("[{}] '{}' must be an unsigned 64-bit number; got '{}'", where_, key, digits);
  }
  return value;
}

const json& JsonFields::object(const char* key) {
  const json& value = any(key);
  if (!value.is_object()) fail("[{}] '{}' must be an object; got {}", where_, key, brief(value));
  return value;
}

void JsonFields::refuse_unknown() const {
  for (const auto& [key, value] : json_.items()) {
    if (!taken_.contains(key))
      fail("[{}] unknown key '{}' with value {}", where_, key, brief(value));
  }
}

}  // namespace fovea::lm
