#include "lm/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

#include "lm/error.h"
#include "lm/json_fields.h"

namespace fovea::lm {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kLargestHeader = 100'000'000;  // the limit of the format's own reader
constexpr std::size_t kLargestRank = 64;
constexpr const char* kMetadata = "__metadata__";

struct KnownDType {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<KnownDType, 15> kDTypes = {{{"BOOL", 1},
                                                 {"U8", 1},
                                                 {"I8", 1},
                                                 {"F8_E4M3", 1},
                                                 {"F8_E5M2", 1},
                                                 {"I16", 2},
                                                 {"U16", 2},
                                                 {"F16", 2},
                                                 {"BF16", 2},
                                                 {"I32", 4},
                                                 {"U32", 4},
                                                 {"F32", 4},
                                                 {"F64", 8},
                                                 {"I64", 8},
                                                 {"U64", 8}}};

// Bytes of one element; 0 when the dtype is not known.
std::uint64_t dtype_bytes(std::string_view name) {
  for (const KnownDType& known : kDTypes) {
    if (known.name == name) return known.bytes;
  }
  return 0;
}

// Validates one header entry by itself: types, dtype, product of the shape against the range.
SafetensorsEntry parse_entry(const std::string& name, const json& value, const std::string& where) {
  const std::string place = where + ": tensor '" + name + "'";
  JsonFields fields(value, place);
  SafetensorsEntry entry;
  entry.name = name;
  entry.dtype = fields.text("dtype");
  const json& shape = fields.any("shape");
  const json& offsets = fields.any("data_offsets");
  fields.refuse_unknown();

  std::uint64_t bytes = dtype_bytes(entry.dtype);
  if (bytes == 0) fail("[{}] unknown dtype '{}'", place, entry.dtype);
  if (!shape.is_array() || shape.size() > kLargestRank) {
    fail("[{}] the shape must be an array of at most {} numbers; got {}", place, kLargestRank,
         brief(shape));
  }
  bool overflow = false;
  bool none = false;
  for (const json& size : shape) {
    if (!size.is_number_unsigned() || size.get<std::uint64_t>() > INT64_MAX) {
      fail("[{}] a dimension must be an integer of at least 0; got {}", place, brief(size));
    }
    entry.shape.push_back(size.get<std::int64_t>());
    none = none || entry.shape.back() == 0;
    overflow = __builtin_mul_overflow(bytes, size.get<std::uint64_t>(), &bytes) || overflow;
  }
  if (none) {
    bytes = 0;
  } else if (overflow) {
    fail("[{}] the size of shape {} exceeds 64 bits", place, to_string(entry.shape));
  }
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    fail("[{}] data_offsets must be two integers of at least 0; got {}", place, brief(offsets));
  }
  entry.begin = offsets[0].get<std::uint64_t>();
  entry.end = offsets[1].get<std::uint64_t>();
  if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
    fail("[{}] data_offsets [{}, {}] do not hold the {} bytes of {} {}", place, entry.begin,
         entry.end, bytes, entry.dtype, to_string(entry.shape));
  }
  return entry;
}

float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fU;
  const std::uint32_t fraction = half & 0x3ffU;
  if (exponent == 0) {
    const float value = static_cast<float>(fraction) * 0x1.0p-24F;
    return sign != 0 ? -value : value;
  }
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  std::array<std::byte, kLengthBytes> length;
  if (file_.size() < kLengthBytes) {
    fail("[safetensors {}] {} bytes are too few for a header length", file_.path(), file_.size());
  }
  file_.read_at(0, length);
  std::uint64_t header_bytes = 0;
  for (std::size_t i = 0; i < length.size(); ++i) {
    header_bytes |= std::to_integer<std::uint64_t>(length[i]) << (8 * i);
  }
  if (header_bytes > kLargestHeader || header_bytes > file_.size() - kLengthBytes) {
    fail("[safetensors {}] the header claims {} bytes; the file has {} and the limit is {}",
         file_.path(), header_bytes, file_.size(), kLargestHeader);
  }
  data_start_ = kLengthBytes + header_bytes;
  parse(header_bytes);
}

void SafetensorsFile::parse(std::uint64_t header_bytes) {
  const std::string where = "safetensors " + file_.path();
  std::string text(header_bytes, '\0');
  file_.read_at(kLengthBytes, std::as_writable_bytes(std::span(text)));
  const json header = parse_json_object(text, where);
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadata) {
      JsonFields fields(value, where + ": " + kMetadata);
      for (const auto& [key, item] : value.items()) metadata_[key] = fields.text(key.c_str());
    } else {
      entries_.push_back(parse_entry(name, value, where));
    }
  }
  std::sort(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t position = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const SafetensorsEntry& entry = entries_[i];
    if (entry.begin != position) {
      fail("[{}] tensor '{}' begins at byte {} of the data, {} the previous end {}", where,
           entry.name, entry.begin, entry.begin < position ? "overlapping" : "leaving a gap behind",
           position);
    }
    position = entry.end;
    by_name_[entry.name] = i;
  }
  if (position != file_.size() - data_start_) {
    fail("[{}] the tensors take {} bytes of data; the file holds {}", where, position,
         file_.size() - data_start_);
  }
}

const SafetensorsEntry* SafetensorsFile::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

void SafetensorsFile::read_into(const SafetensorsEntry& entry, const Tensor& to) const {
  if (to.shape() != entry.shape) {
    fail("[safetensors {}] tensor '{}' has shape {}; {} is wanted", path(), entry.name,
         to_string(entry.shape), to_string(to.shape()));
  }
  const std::span<float> values = to.values();
  if (entry.dtype == "F32") {
    file_.read_at(data_start_ + entry.begin, std::as_writable_bytes(values));
    return;
  }
  if (entry.dtype != "F16" && entry.dtype != "BF16") {
    fail("[safetensors {}] tensor '{}' is {}; F32, F16 or BF16 is wanted", path(), entry.name,
         entry.dtype);
  }
  std::vector<std::uint16_t> narrow(values.size());
  file_.read_at(data_start_ + entry.begin, std::as_writable_bytes(std::span(narrow)));
  const bool half = entry.dtype == "F16";
  std::transform(narrow.begin(), narrow.end(), values.begin(), [&](std::uint16_t bits) {
    return half ? half_to_float(bits) : std::bit_cast<float>(std::uint32_t{bits} << 16);
  });
}

void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  static_assert(std::endian::native == std::endian::little, "the format is little-endian");
  json header = json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  std::uint64_t position = 0;
  for (const NamedTensor& named : tensors) {
    if (named.name == kMetadata || header.contains(named.name)) {
      fail("[safetensors {}] the name '{}' is {}", path.string(), named.name,
           named.name == kMetadata ? "reserved" : "given twice");
    }
    const std::span<float> values = named.tensor.values();
    header[named.name] = {{"dtype", "F32"},
                          {"shape", named.tensor.shape()},
                          {"data_offsets", {position, position + values.size_bytes()}}};
    position += values.size_bytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data starts aligned

  AtomicFile file(path);
  std::array<std::byte, kLengthBytes> length;
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<std::byte>(text.size() >> (8 * i));
  }
  file.write(length);
  file.write(std::as_bytes(std::span(text)));
  for (const NamedTensor& named : tensors) file.write(std::as_bytes(named.tensor.values()));
  file.commit();
}

}  // namespace fovea::lm
