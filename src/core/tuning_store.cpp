#include "core/tuning_store.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include <unistd.h>

#include "contract/format.h"
#include "core/json_text.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;

/// What begins every line; another number is another format.
constexpr std::string_view kOpening = R"({"fovea_tuning":1,"call":)";
constexpr std::uintmax_t kMostFileBytes = std::uintmax_t{16} << 20;
/// Choices that the file keeps, the latest.
constexpr std::size_t kMostChoices = 4096;

/// Reads what line_of() writes, and no other JSON.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool skip(std::string_view expected) {
    if (text_.substr(0, expected.size()) != expected) return false;
    text_.remove_prefix(expected.size());
    return true;
  }
  bool string(std::string& to) {
    if (!skip("\"")) return false;
    to.clear();
    while (!text_.empty() && text_.front() != '"') {
      if (text_.front() == '\\') text_.remove_prefix(1);
      // Other escapes stand for characters that no name here has.
      if (text_.empty() || static_cast<unsigned char>(text_.front()) < 0x20) return false;
      to += text_.front();
      text_.remove_prefix(1);
    }
    return skip("\"");
  }
  bool number(double& to) {
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), to);
    if (error != std::errc()) return false;
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return std::isfinite(to);
  }
  [[nodiscard]] bool at_end() const { return text_.empty(); }

 private:
  std::string_view text_;
};

/// The file's choices, the latest of each class, oldest first.
std::vector<TunedChoice> read_file(const std::string& path, std::string& notice) {
  std::vector<TunedChoice> list;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return list;
  const std::uintmax_t bytes = fs::is_regular_file(status) ? fs::file_size(path, error) : 0;
  if (error || !fs::is_regular_file(status) || bytes > kMostFileBytes) {
    notice = formatted("{} is no file of measured choices and was ignored", path);
    return list;
  }
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) notice = formatted("{} cannot be opened", path);
  std::map<std::string, std::size_t> place;
  std::size_t bad = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty()) continue;
    std::optional<TunedChoice> choice = parse_tuning(line);
    if (!choice) {
      ++bad;
      continue;
    }
    const auto [at, added] = place.emplace(choice->call, list.size());
    if (added)
      list.push_back(std::move(*choice));
    else
      list[at->second] = std::move(*choice);
  }
  if (bad > 0)
    notice = formatted("{} line{} of {} cannot be read and {} ignored", bad, bad == 1 ? "" : "s",
                       path, bad == 1 ? "was" : "were");
  return list;
}

/// "" or what went wrong.
std::string write_file(const std::string& path, const std::vector<TunedChoice>& list) {
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  static std::atomic<int> count{0};
  const std::string temporary = formatted("{}.{}.{}", path, getpid(), ++count);
  std::FILE* file = std::fopen(temporary.c_str(), "wx");
  if (file == nullptr) return formatted("{} cannot be written", temporary);
  bool written = true;
  for (const TunedChoice& choice : list) {
    const std::string line = line_of(choice) + "\n";
    written = written && std::fwrite(line.data(), 1, line.size(), file) == line.size();
  }
  written = std::fclose(file) == 0 && written;
  if (written && std::rename(temporary.c_str(), path.c_str()) == 0) return {};
  std::remove(temporary.c_str());
  return formatted("{} cannot be written", path);
}

struct Memory {
  std::mutex mutex;
  std::map<std::string, TunedChoice> choices;
};

Memory& memory() {
  static auto* instance = new Memory;
  return *instance;
}

void add_notice(std::string& notice, const std::string& more) {
  if (!more.empty()) notice += (notice.empty() ? "" : "; ") + more;
}

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

}  // namespace

std::string tuning_file() {
  constexpr const char* kName = "autotune.jsonl";
  if (const char* own = variable("FOVEA_CACHE_DIR")) return fs::path(own) / kName;
  if (const char* cache = variable("XDG_CACHE_HOME")) return fs::path(cache) / "fovea" / kName;
  if (const char* home = variable("HOME")) return fs::path(home) / ".cache" / "fovea" / kName;
  return {};
}

std::string line_of(const TunedChoice& choice) {
  std::string kernels;
  for (const TunedKernel& k : choice.kernels)
    kernels += formatted(R"({}{{"kernel":{},"ms":{:.6g}}})", kernels.empty() ? "" : ",",
                         json_quoted(k.kernel), k.ms);
  return formatted(R"({}{},"kernel":{},"kernels":[{}]}})", kOpening, json_quoted(choice.call),
                   json_quoted(choice.kernel), kernels);
}

std::optional<TunedChoice> parse_tuning(std::string_view line) {
  Reader reader(line);
  TunedChoice choice;
  if (!reader.skip(kOpening) || !reader.string(choice.call) || !reader.skip(R"(,"kernel":)") ||
      !reader.string(choice.kernel) || !reader.skip(R"(,"kernels":[)"))
    return {};
  bool chosen = false;
  while (!reader.skip("]")) {
    TunedKernel kernel;
    if (!choice.kernels.empty() && !reader.skip(",")) return {};
    if (!reader.skip(R"({"kernel":)") || !reader.string(kernel.kernel) ||
        !reader.skip(R"(,"ms":)") || !reader.number(kernel.ms) || kernel.ms < 0 ||
        !reader.skip("}"))
      return {};
    chosen = chosen || kernel.kernel == choice.kernel;
    choice.kernels.push_back(std::move(kernel));
  }
  if (!reader.skip("}") || !reader.at_end() || !chosen) return {};
  return choice;
}

std::optional<TunedChoice> find_tuning(const std::string& call, std::string& notice) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  if (const auto found = m.choices.find(call); found != m.choices.end()) return found->second;
  const std::string path = tuning_file();
  if (path.empty()) return {};
  std::string trouble;
  for (TunedChoice& choice : read_file(path, trouble))
    m.choices.try_emplace(choice.call, std::move(choice));
  add_notice(notice, trouble);
  if (const auto found = m.choices.find(call); found != m.choices.end()) return found->second;
  return {};
}

void keep_tuning(const TunedChoice& choice, std::string& notice) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  m.choices[choice.call] = choice;
  const std::string path = tuning_file();
  if (path.empty()) {
    add_notice(notice, "there is no place to keep measured choices (FOVEA_CACHE_DIR)");
    return;
  }
  // What cannot be read has been reported by find_tuning(), and goes.
  std::string trouble;
  std::vector<TunedChoice> list = read_file(path, trouble);
  std::erase_if(list, [&](const TunedChoice& other) { return other.call == choice.call; });
  list.push_back(choice);
  if (list.size() > kMostChoices)
    list.erase(list.begin(), list.end() - static_cast<std::ptrdiff_t>(kMostChoices));
  add_notice(notice, write_file(path, list));
}

std::vector<TunedChoice> known_tunings() {
  std::string ignored;
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  if (const std::string path = tuning_file(); !path.empty())
    for (TunedChoice& choice : read_file(path, ignored))
      m.choices.try_emplace(choice.call, std::move(choice));
  std::vector<TunedChoice> list;
  for (const auto& [call, choice] : m.choices) list.push_back(choice);
  return list;
}

void forget_tunings() {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  m.choices.clear();
}

}  // namespace fovea
