#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace fovea::io {
namespace {

using nlohmann::json;

// The limit of the format's own implementation.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kMaxDimensions = 32;

struct StoredType {
  std::string_view name;
  DType dtype;
  std::int64_t bytes;
};
constexpr std::array<StoredType, 15> kTypes{{{"F32", DType::f32, 4},
                                             {"F16", DType::f16, 2},
                                             {"BF16", DType::bf16, 2},
                                             {"F64", DType::f64, 8},
                                             {"BOOL", DType::boolean, 1},
                                             {"I32", DType::i32, 4},
                                             {"I64", DType::i64, 8},
                                             {"I8", DType::i8, 1},
                                             {"F8_E4M3", DType::fp8_e4m3, 1},
                                             {"F8_E5M2", DType::fp8_e5m2, 1},
                                             {"U8", DType::none, 1},
                                             {"U16", DType::none, 2},
                                             {"I16", DType::none, 2},
                                             {"U32", DType::none, 4},
                                             {"U64", DType::none, 8}}};

Status bad(const std::string& path, const std::string& what) {
  return {StatusCode::invalid, fmt::format("{}: {}", path, what)};
}

/// Parses JSON, refusing keys that stand twice in one object (which json itself accepts).
json parse_strictly(std::string_view text, std::string& error) {
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second && error.empty()) {
        error = fmt::format("the name '{}' stands twice in the header", key);
      }
    }
    return true;
  };
  json header = json::parse(text, watch, false);
  if (header.is_discarded() && error.empty()) error = "the header is not valid JSON";
  if (error.empty() && !header.is_object()) error = "the header is not a JSON object";
  return header;
}

/// Reads one entry of the header; returns what is wrong with it, or nothing.
std::string parse_entry(const json& value, SafetensorsEntry& entry) {
  if (!value.is_object()) return "is not an object";
  if (value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets")) {
    return "does not have just dtype, shape and data_offsets";
  }
  const json& dtype = value["dtype"];
  const json& shape = value["shape"];
  const json& offsets = value["data_offsets"];
  if (!dtype.is_string() || !shape.is_array() || !offsets.is_array() || offsets.size() != 2 ||
      !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
    return "has a dtype, shape or data_offsets of the wrong kind";
  }
  entry.stored_dtype = dtype.get<std::string>();
  std::int64_t element_bytes = 0;
  for (const StoredType& type : kTypes) {
    if (type.name == entry.stored_dtype) {
      entry.dtype = type.dtype;
      element_bytes = type.bytes;
    }
  }
  if (element_bytes == 0) return fmt::format("has the unknown dtype '{}'", entry.stored_dtype);
  if (shape.size() > kMaxDimensions)
    return fmt::format("has more than {} dimensions", kMaxDimensions);
  for (const json& dim : shape) {
    if (!dim.is_number_unsigned() || dim.get<std::uint64_t>() > INT64_MAX) {
      return fmt::format("has a dimension that is no size: {}", dim.dump());
    }
    entry.shape.push_back(dim.get<std::int64_t>());
  }
  // Counted in bytes of i8, then multiplied: foreign dtypes have no size_of.
  auto bytes = byte_count(DType::i8, entry.shape);
  std::uint64_t total = 0;
  if (!bytes || __builtin_mul_overflow(*bytes, static_cast<std::uint64_t>(element_bytes), &total)) {
    return fmt::format("has a shape that overflows: {}", to_string(entry.shape));
  }
  entry.begin = offsets[0].get<std::uint64_t>();
  entry.end = offsets[1].get<std::uint64_t>();
  if (entry.begin > entry.end || entry.end - entry.begin != total) {
    return fmt::format("has data_offsets [{}, {}], but its shape {} of {} takes {} bytes",
                       entry.begin, entry.end, to_string(entry.shape), entry.stored_dtype, total);
  }
  return {};
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  Result<InputFile> opened = InputFile::open(path);
  if (!opened) return opened.status();
  SafetensorsFile file(std::move(*opened));
  const std::uint64_t size = file.file_.size();
  if (size < 8) return bad(path, fmt::format("not a safetensors file: {} bytes", size));
  std::array<unsigned char, 8> prefix{};
  if (Status s = file.file_.read_at(0, prefix.data(), 8); !s.ok()) return s;
  std::uint64_t length = 0;
  for (std::size_t i = 8; i-- > 0;) length = length << 8 | prefix[i];
  if (length > size - 8) {
    return bad(path, fmt::format("a header of {} bytes does not fit a file of {}", length, size));
  }
  if (length > kMaxHeaderBytes) {
    return bad(path, fmt::format("a header of {} bytes exceeds {}", length, kMaxHeaderBytes));
  }
  std::string text(length, '\0');
  if (Status s = file.file_.read_at(8, text.data(), text.size()); !s.ok()) return s;
  if (Status s = file.parse_header(text, 8 + length); !s.ok()) return s;
  return file;
}

Status SafetensorsFile::parse_header(std::string_view text, std::uint64_t data_begin) {
  std::string error;
  const json header = parse_strictly(text, error);
  if (!error.empty()) return bad(path(), error);
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) return bad(path(), "__metadata__ is not an object");
      for (const auto& [key, item] : value.items()) {
        if (!item.is_string()) {
          return bad(path(), fmt::format("__metadata__ '{}' is not a string", key));
        }
        metadata_[key] = item.get<std::string>();
      }
      continue;
    }
    SafetensorsEntry entry;
    entry.name = name;
    error = parse_entry(value, entry);
    if (!error.empty()) return bad(path(), fmt::format("tensor '{}' {}", name, error));
    entries_.push_back(std::move(entry));
  }
  std::stable_sort(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::uint64_t at = 0;
  for (const SafetensorsEntry& entry : entries_) {
    if (entry.begin != at) {
      return bad(path(), fmt::format("tensor '{}' begins at byte {} of the data, {} the end of the "
                                     "tensor before it ({})",
                                     entry.name, entry.begin,
                                     entry.begin < at ? "inside or before" : "behind", at));
    }
    at = entry.end;
  }
  const std::uint64_t data_bytes = file_.size() - data_begin;
  if (at != data_bytes) {
    return bad(path(),
               fmt::format("the tensors take {} bytes, but the file holds {}", at, data_bytes));
  }
  for (SafetensorsEntry& entry : entries_) {
    entry.begin += data_begin;
    entry.end += data_begin;
  }
  return {};
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  for (const SafetensorsEntry& entry : entries_) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

Status SafetensorsFile::read(const SafetensorsEntry& entry, void* to) const {
  return file_.read_at(entry.begin, to, static_cast<std::size_t>(entry.end - entry.begin));
}

Result<Array> SafetensorsFile::read(std::string_view name) const {
  const SafetensorsEntry* entry = find(name);
  if (entry == nullptr) {
    std::string known;
    for (std::size_t i = 0; i < std::min<std::size_t>(entries_.size(), 8); ++i) {
      known += fmt::format("{}'{}'", i == 0 ? "" : ", ", entries_[i].name);
    }
    if (entries_.size() > 8) known += fmt::format(" and {} more", entries_.size() - 8);
    return bad(path(),
               fmt::format("no tensor '{}'; it holds {}", name, known.empty() ? "none" : known));
  }
  if (entry->dtype == DType::none) {
    return bad(path(), fmt::format("tensor '{}' has dtype {}, which does not serve", name,
                                   entry->stored_dtype));
  }
  Result<Array> array = make_array(entry->dtype, entry->shape);
  if (!array) return array;
  if (Status s = read(*entry, array->data.data()); !s.ok()) return s;
  return array;
}

Result<AtomicFile> stage_safetensors(const std::string& path,
                                     const std::vector<SafetensorsTensor>& tensors,
                                     const std::map<std::string, std::string>& metadata) {
  // ordered_json keeps the tensors in the order of their data.
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::vector<std::uint64_t> sizes;
  std::uint64_t at = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    std::string_view stored;
    for (const StoredType& type : kTypes) {
      if (type.dtype == tensor.dtype && tensor.dtype != DType::none) stored = type.name;
    }
    const auto bytes = byte_count(tensor.dtype, tensor.shape);
    if (stored.empty() || !bytes || tensor.name == "__metadata__" || header.contains(tensor.name)) {
      return bad(path, fmt::format("cannot store tensor '{}' of {} {}: {}", tensor.name,
                                   name_of(tensor.dtype), to_string(tensor.shape),
                                   stored.empty() ? "the format has no such dtype"
                                   : !bytes       ? "the shape overflows"
                                                  : "the name is taken"));
    }
    header[tensor.name] = {
        {"dtype", stored}, {"shape", tensor.shape}, {"data_offsets", {at, at + *bytes}}};
    sizes.push_back(*bytes);
    at += *bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception&) {
    return bad(path, "a tensor's name or the metadata is not valid UTF-8");
  }
  text.append((64 - (8 + text.size()) % 64) % 64, ' ');
  std::array<unsigned char, 8> prefix{};
  for (std::size_t i = 0; i < 8; ++i) {
    prefix[i] = static_cast<unsigned char>(text.size() >> (8 * i) & 0xFF);
  }
  Result<AtomicFile> file = AtomicFile::create(path);
  if (!file) return file.status();
  if (Status s = file->write(prefix.data(), prefix.size()); !s.ok()) return s;
  if (Status s = file->write(text.data(), text.size()); !s.ok()) return s;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (Status s = file->write(tensors[i].data, sizes[i]); !s.ok()) return s;
  }
  return file;
}

Status write_safetensors(const std::string& path, const std::vector<SafetensorsTensor>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  Result<AtomicFile> file = stage_safetensors(path, tensors, metadata);
  return file ? file->commit() : file.status();
}

}  // namespace fovea::io
