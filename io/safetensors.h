// Safetensors files. Format: https://github.com/huggingface/safetensors (README, "Format").
//
//   u64 n, little endian | n bytes of JSON | data
//   JSON: {"name": {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}, ..,
//          "__metadata__": {"key": "value", ..}}     offsets count from the end of the JSON
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fovea/status.h>
#include <fovea/tensor.h>

#include "io/array.h"
#include "io/atomic_file.h"
#include "io/input_file.h"

namespace fovea::io {

struct SafetensorsEntry {
  std::string name;
  std::string stored_dtype;   ///< as in the file: "F32", "U8", ...
  DType dtype = DType::none;  ///< none for dtypes that Fovea does not have
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  ///< bytes, from the start of the file
};

/// An open file whose header has been checked: sizes against dtype and shape, every byte of the
/// data owned by exactly one tensor.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);

  /// In order of their place in the file.
  [[nodiscard]] const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  [[nodiscard]] const std::string& path() const { return file_.path(); }
  /// Null when there is no tensor of that name.
  [[nodiscard]] const SafetensorsEntry* find(std::string_view name) const;

  /// Reads a tensor's bytes; `to` holds end - begin bytes.
  Status read(const SafetensorsEntry& entry, void* to) const;
  /// Reads a tensor into memory of its own; fails when it is missing or of a foreign dtype.
  [[nodiscard]] Result<Array> read(std::string_view name) const;

 private:
  explicit SafetensorsFile(InputFile file) : file_(std::move(file)) {}
  Status parse_header(std::string_view json, std::uint64_t data_begin);

  InputFile file_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

/// One tensor to be written: row-major, dense.
struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::none;
  std::vector<std::int64_t> shape;
  const void* data = nullptr;
};

/// A whole file that only lacks its commit(): tensors in the given order, the data 64-byte aligned.
Result<AtomicFile> stage_safetensors(const std::string& path,
                                     const std::vector<SafetensorsTensor>& tensors,
                                     const std::map<std::string, std::string>& metadata = {});

/// Writes atomically.
Status write_safetensors(const std::string& path, const std::vector<SafetensorsTensor>& tensors,
                         const std::map<std::string, std::string>& metadata = {});

}  // namespace fovea::io
