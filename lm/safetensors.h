// Strict reading and atomic writing of .safetensors files.
//
// Layout: 8 bytes little-endian header length n, n bytes of JSON, then the tensor data. The JSON
// maps names to {"dtype", "shape", "data_offsets": [begin, end]} relative to the data, and
// optionally
// "__metadata__" to an object of strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lm/file.h"
#include "lm/tensor.h"

namespace fovea::lm {

/// One tensor of a file, known good: its range lies in the file and has the size of its shape.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;  ///< as in the file: "F32", "BF16", ...
  Shape shape;
  std::uint64_t begin = 0;  ///< bytes from the start of the data
  std::uint64_t end = 0;
};

class SafetensorsFile {
 public:
  /// Checks the whole header before anything is allocated from its numbers: length, JSON, doubled
  /// keys, dtypes, shapes and their products, ranges (inside the file, disjoint, without gaps, all
  /// of the file used). Throws fovea::Error, "[safetensors <path>] ...".
  explicit SafetensorsFile(const std::filesystem::path& path);

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  /// In the order of their data.
  [[nodiscard]] const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  /// Null when there is none of this name.
  [[nodiscard]] const SafetensorsEntry* find(const std::string& name) const;
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Reads F32, F16 or BF16 data into a contiguous f32 tensor of the entry's shape.
  void read_into(const SafetensorsEntry& entry, const Tensor& to) const;

 private:
  void parse(std::uint64_t header_bytes);

  InputFile file_;
  std::uint64_t data_start_ = 0;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// A tensor to be written; f32, contiguous.
struct NamedTensor {
  std::string name;
  Tensor tensor;
};

/// Writes the file under a temporary name, flushes and renames it. Throws fovea::Error on a doubled
/// or reserved name, or a failing file system; then `path` is as it was.
void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace fovea::lm
