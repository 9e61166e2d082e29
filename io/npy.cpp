#include "io/npy.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "io/input_file.h"

namespace fovea::io {
namespace {

constexpr std::string_view kMagic{"\x93NUMPY", 6};
// NumPy's headers take some hundred bytes; its own reader refuses headers above 10,000.
constexpr std::uint32_t kMaxHeaderBytes = 1u << 16;
constexpr std::size_t kMaxDimensions = 32;

struct NpyType {
  std::string_view descr;
  DType dtype;
};
constexpr std::array<NpyType, 7> kTypes{{{"<f2", DType::f16},
                                         {"<f4", DType::f32},
                                         {"<f8", DType::f64},
                                         {"|b1", DType::boolean},
                                         {"|i1", DType::i8},
                                         {"<i4", DType::i32},
                                         {"<i8", DType::i64}}};

Status bad(const std::string& path, std::string what) {
  return {StatusCode::invalid, fmt::format("{}: {}", path, what)};
}

/// A parser of the header's dict literal that accepts just what NumPy writes.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : rest_(text) {}

  /// Empty on success, else what is wrong.
  std::string parse(ArrayInfo& info) {
    if (!take('{')) return "the header is not a dict";
    bool descr = false, order = false, shape = false;
    while (!take('}')) {
      std::string_view key;
      if (!take_string(key) || !take(':')) return "the header's dict is malformed";
      bool* seen = key == "descr"           ? &descr
                   : key == "fortran_order" ? &order
                   : key == "shape"         ? &shape
                                            : nullptr;
      if (seen == nullptr) return fmt::format("unknown header key '{}'", key);
      if (*seen) return fmt::format("the header key '{}' stands twice", key);
      *seen = true;
      std::string error = seen == &descr   ? parse_descr(info)
                          : seen == &order ? parse_order(info)
                                           : parse_shape(info);
      if (!error.empty()) return error;
      if (!take(',') && peek() != '}') return "the header's dict is malformed";
    }
    skip_spaces();
    if (!rest_.empty()) return "the header goes on after its dict";
    if (!descr || !order || !shape) return "the header lacks 'descr', 'fortran_order' or 'shape'";
    return {};
  }

 private:
  std::string parse_descr(ArrayInfo& info) {
    std::string_view descr;
    if (!take_string(descr)) return "'descr' is not a plain dtype (structured arrays do not serve)";
    for (const NpyType& type : kTypes) {
      if (type.descr == descr) {
        info.dtype = type.dtype;
        return {};
      }
    }
    std::string known;
    for (const NpyType& type : kTypes) known += fmt::format(" {}", type.descr);
    return fmt::format("dtype '{}' is not one of{}", descr, known);
  }

  std::string parse_order(ArrayInfo& info) {
    skip_spaces();
    for (const auto& [word, value] : {std::pair{"True", true}, std::pair{"False", false}}) {
      if (rest_.substr(0, std::strlen(word)) == word) {
        rest_.remove_prefix(std::strlen(word));
        info.column_major = value;
        return {};
      }
    }
    return "'fortran_order' is neither True nor False";
  }

  std::string parse_shape(ArrayInfo& info) {
    if (!take('(')) return "'shape' is not a tuple";
    while (!take(')')) {
      skip_spaces();
      std::int64_t dim = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), dim);
      if (error == std::errc::result_out_of_range) return "a dimension exceeds 64 bits";
      if (error != std::errc{}) return "'shape' is not a tuple of integers";
      if (dim < 0) return fmt::format("negative dimension {}", dim);
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      info.shape.push_back(dim);
      if (info.shape.size() > kMaxDimensions) {
        return fmt::format("more than {} dimensions", kMaxDimensions);
      }
      if (!take(',')) {
        // "(3)" is an integer in parentheses, not a tuple.
        if (peek() != ')' || info.shape.size() == 1) return "'shape' is not a tuple of integers";
      }
    }
    return {};
  }

  void skip_spaces() {
    while (!rest_.empty() && std::isspace(static_cast<unsigned char>(rest_[0])) != 0) {
      rest_.remove_prefix(1);
    }
  }
  char peek() {
    skip_spaces();
    return rest_.empty() ? '\0' : rest_[0];
  }
  bool take(char wanted) {
    if (peek() != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool take_string(std::string_view& value) {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return false;
    const std::size_t end = rest_.find(quote, 1);
    if (end == std::string_view::npos) return false;
    value = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return true;
  }

  std::string_view rest_;
};

struct Header {
  ArrayInfo info;
  std::uint64_t data_begin = 0, data_bytes = 0;
};

Result<Header> read_header(const InputFile& file) {
  const std::string& path = file.path();
  std::array<unsigned char, 12> prefix{};
  if (file.size() < 10) {
    return bad(path, fmt::format("not an .npy file: {} bytes", file.size()));
  }
  if (Status s = file.read_at(0, prefix.data(), 10); !s.ok()) return s;
  if (std::memcmp(prefix.data(), kMagic.data(), kMagic.size()) != 0) {
    return bad(path, "not an .npy file: the magic bytes are missing");
  }
  const int major = prefix[6], minor = prefix[7];
  if (major < 1 || major > 3 || minor != 0) {
    return bad(path, fmt::format(".npy version {}.{} is not 1.0, 2.0 or 3.0", major, minor));
  }
  std::uint32_t length = prefix[8] | static_cast<std::uint32_t>(prefix[9]) << 8;
  std::uint64_t begin = 10;
  if (major >= 2) {
    begin = 12;
    if (file.size() < begin) return bad(path, "the file ends inside its header");
    if (Status s = file.read_at(10, prefix.data() + 10, 2); !s.ok()) return s;
    length |= static_cast<std::uint32_t>(prefix[10]) << 16 | static_cast<std::uint32_t>(prefix[11])
                                                                 << 24;
  }
  if (length > kMaxHeaderBytes) {
    return bad(path, fmt::format("a header of {} bytes exceeds {}", length, kMaxHeaderBytes));
  }
  if (length > file.size() - begin) {
    return bad(path, fmt::format("the file ({} bytes) ends inside its header ({} bytes)",
                                 file.size(), length));
  }
  std::string text(length, '\0');
  if (Status s = file.read_at(begin, text.data(), text.size()); !s.ok()) return s;

  Header header;
  if (std::string error = HeaderParser(text).parse(header.info); !error.empty()) {
    return bad(path, std::move(error));
  }
  const auto bytes = byte_count(header.info.dtype, header.info.shape);
  if (!bytes) {
    return bad(path, fmt::format("the shape {} overflows", to_string(header.info.shape)));
  }
  header.data_begin = begin + length;
  header.data_bytes = *bytes;
  if (file.size() - header.data_begin != *bytes) {
    return bad(path,
               fmt::format("the shape {} takes {} bytes, but the file holds {}",
                           to_string(header.info.shape), *bytes, file.size() - header.data_begin));
  }
  return header;
}

}  // namespace

Result<ArrayInfo> read_npy_info(const std::string& path) {
  Result<InputFile> file = InputFile::open(path);
  if (!file) return file.status();
  Result<Header> header = read_header(*file);
  if (!header) return header.status();
  return std::move(header->info);
}

Result<Array> read_npy(const std::string& path) {
  Result<InputFile> file = InputFile::open(path);
  if (!file) return file.status();
  Result<Header> header = read_header(*file);
  if (!header) return header.status();
  Result<Array> array = make_array(header->info.dtype, header->info.shape);
  if (!array) return array;
  array->info.column_major = header->info.column_major;
  if (Status s = file->read_at(header->data_begin, array->data.data(), array->data.size());
      !s.ok()) {
    return s;
  }
  return array;
}

bool npy_can_hold(DType dtype) {
  for (const NpyType& type : kTypes) {
    if (type.dtype == dtype) return true;
  }
  return false;
}

Result<AtomicFile> stage_npy(const std::string& path, const ArrayInfo& info, const void* data) {
  std::string_view descr;
  for (const NpyType& type : kTypes) {
    if (type.dtype == info.dtype) descr = type.descr;
  }
  if (descr.empty()) {
    return bad(path,
               fmt::format(".npy has no type for {}; write .safetensors", name_of(info.dtype)));
  }
  const auto bytes = byte_count(info.dtype, info.shape);
  if (!bytes) return bad(path, fmt::format("the shape {} overflows", to_string(info.shape)));

  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': ({}{}), }}", descr,
                                 info.column_major ? "True" : "False", fmt::join(info.shape, ", "),
                                 info.shape.size() == 1 ? "," : "");
  // The data starts at a multiple of 64 bytes; the header ends with a newline.
  text.append(63 - (10 + text.size()) % 64, ' ');
  text += '\n';
  std::string prefix(kMagic);
  prefix +=
      {'\x01', '\x00', static_cast<char>(text.size() & 0xFF), static_cast<char>(text.size() >> 8)};

  Result<AtomicFile> file = AtomicFile::create(path);
  if (!file) return file.status();
  if (Status s = file->write(prefix.data(), prefix.size()); !s.ok()) return s;
  if (Status s = file->write(text.data(), text.size()); !s.ok()) return s;
  if (Status s = file->write(data, *bytes); !s.ok()) return s;
  return file;
}

Status write_npy(const std::string& path, const ArrayInfo& info, const void* data) {
  Result<AtomicFile> file = stage_npy(path, info, data);
  return file ? file->commit() : file.status();
}

}  // namespace fovea::io
