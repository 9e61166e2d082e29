// Files and processes for the tests of the command-line tool.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace fovea::test {

/// A folder that is removed with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "fovea_test.XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) ADD_FAILURE() << "no temporary folder";
    path_ = pattern;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] std::string operator/(const std::string& name) const {
    return (path_ / name).string();
  }
  /// Names of the files in it.
  [[nodiscard]] std::string listing() const {
    std::string names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names += entry.path().filename().string() + " ";
    }
    return names;
  }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_file(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

struct ProcessResult {
  int exit_code = -1;
  std::string out, err;
};

/// Runs the tool through the shell, with `environment` before its name.
inline ProcessResult run_tool(const std::string& arguments, const std::string& environment = "") {
  const TemporaryFolder folder;
  const std::string command = environment + " " FOVEA_CLI_PATH " " + arguments + " >" +
                              (folder / "out") + " 2>" + (folder / "err") + " </dev/null";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          read_file(folder / "out"), read_file(folder / "err")};
}

/// Number of lines.
inline int lines_of(const std::string& text) {
  int lines = 0;
  for (const char c : text) lines += c == '\n' ? 1 : 0;
  return lines;
}

}  // namespace fovea::test
