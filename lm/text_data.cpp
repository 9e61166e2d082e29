// Reading text: load_text, split_text.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <system_error>

#include "lm/data.h"
#include "lm/error.h"
#include "lm/tokenizer.h"

namespace fovea::lm {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kParts = 8;  // of the text, each with its share of validation

bool skipped_folder(const std::string& name) {
  static const std::set<std::string> names = {"out",         "dist",   "node_modules",
                                              "__pycache__", "target", "CMakeFiles"};
  return name.starts_with(".") || name.starts_with("build") || names.contains(name);
}

// Adds the files of a folder, sorted by path, for the same order on every file system.
void collect(const fs::path& folder, const TextOptions& options, std::vector<fs::path>& files) {
  std::vector<fs::directory_entry> entries;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(*it);
  }
  if (error) fail("[data] cannot read folder {}: {}", folder.string(), error.message());
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.path().native() < b.path().native(); });
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename().string();
    if (entry.is_symlink(error)) continue;
    if (entry.is_directory(error)) {
      if (!skipped_folder(name)) collect(entry.path(), options, files);
    } else if (entry.is_regular_file(error) && !name.starts_with(".")) {
      const std::string extension = entry.path().extension().string();
      const auto& wanted = options.extensions;
      if (std::find(wanted.begin(), wanted.end(), extension) != wanted.end()) {
        files.push_back(entry.path());
      }
    }
  }
}

// False when the file is binary or cannot be read.
bool append_file(const fs::path& file, std::int64_t max_bytes, std::vector<std::uint8_t>& text) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return false;
  std::error_code error;
  const std::uintmax_t size = fs::file_size(file, error);
  if (error) return false;
  if (size > static_cast<std::uintmax_t>(max_bytes) - text.size()) {
    fail("[data] the text exceeds the limit of {} bytes at file {} ({} bytes)", max_bytes,
         file.string(), size);
  }
  const auto before = static_cast<std::ptrdiff_t>(text.size());
  text.resize(text.size() + size);
  in.read(reinterpret_cast<char*>(text.data() + before), static_cast<std::streamsize>(size));
  const bool complete = in.gcount() == static_cast<std::streamsize>(size);
  const bool binary =
      std::find(text.begin() + before, text.end(), ByteTokenizer::kEndOfText) != text.end();
  if (complete && !binary) return true;
  text.resize(static_cast<std::size_t>(before));
  return false;
}

}  // namespace

TextData load_text(const std::vector<fs::path>& paths, const TextOptions& options) {
  if (options.max_bytes < 1) fail("[data] max_bytes must be positive; got {}", options.max_bytes);
  std::vector<fs::path> files;
  for (const fs::path& path : paths) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (fs::is_directory(status)) {
      collect(path, options, files);
    } else if (fs::is_regular_file(status)) {
      files.push_back(path);
    } else {
      fail("[data] no file or folder at {}", path.string());
    }
  }
  std::vector<std::uint8_t> text;
  std::vector<std::string> read;
  std::int64_t skipped = 0;
  for (const fs::path& file : files) {
    const std::size_t before = text.size();
    if (before > 0) text.push_back(ByteTokenizer::kEndOfText);
    const std::size_t start = text.size();
    if (!append_file(file, options.max_bytes, text)) ++skipped;
    if (text.size() == start) {
      text.resize(before);  // nothing read: no separator either
    } else {
      read.push_back(file.string());
    }
  }
  if (text.empty()) {
    std::string places;
    for (const fs::path& path : paths) places += (places.empty() ? "" : ", ") + path.string();
    fail("[data] no text found in '{}'; looked at {} files, skipped {} as binary or unreadable",
         places, files.size(), skipped);
  }
  TextData data = split_text(std::move(text), options.validation_fraction);
  data.files = std::move(read);
  data.skipped = skipped;
  return data;
}

TextData split_text(std::vector<std::uint8_t> text, double validation_fraction) {
  if (!(validation_fraction >= 0 && validation_fraction <= 0.5)) {
    fail("[data] the validation fraction must lie in 0 to 0.5; got {}", validation_fraction);
  }
  TextData data;
  const auto size = static_cast<std::int64_t>(text.size());
  for (std::int64_t part = 0; part < kParts; ++part) {
    const std::int64_t begin = size * part / kParts;
    const std::int64_t end = size * (part + 1) / kParts;
    const auto kept = static_cast<std::int64_t>(
        std::floor(static_cast<double>(end - begin) * validation_fraction));
    data.train.insert(data.train.end(), text.begin() + begin, text.begin() + end - kept);
    data.validation.insert(data.validation.end(), text.begin() + end - kept, text.begin() + end);
  }
  return data;
}

std::string TextData::fingerprint() const {
  // FNV-1a over eight bytes at a time would depend on the byte order; one at a time does not.
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const std::uint8_t byte : train) hash = (hash ^ byte) * 0x100000001b3U;
  return fmt::format("{}-{:016x}", train.size(), hash);
}

}  // namespace fovea::lm
