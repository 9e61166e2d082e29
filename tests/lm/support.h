// Shared by the runtime's tests: scratch folders, error messages, random tensors.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lm/error.h"
#include "lm/rng.h"
#include "lm/tensor.h"

namespace fovea::lm::test {

/// A folder that lives as long as the object.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "fovea-lm-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + name);
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The message of the fovea::Error that `call` throws; fails the test when it throws none.
template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

#define EXPECT_ERROR_HAS(call, text)                                              \
  do {                                                                            \
    const std::string message_ = ::fovea::lm::test::error_of([&] { call; });      \
    EXPECT_NE(message_.find(text), std::string::npos) << "message: " << message_; \
  } while (false)

inline Tensor random_tensor(Shape shape, Rng& rng, double deviation = 1.0) {
  Tensor tensor = Tensor::empty(std::move(shape));
  for (float& value : tensor.values()) value = static_cast<float>(deviation * rng.normal());
  return tensor;
}

inline std::vector<float> values_of(const Tensor& tensor) {
  const Tensor copy = tensor.clone();
  const std::span<float> values = copy.values();
  return {values.begin(), values.end()};
}

}  // namespace fovea::lm::test
