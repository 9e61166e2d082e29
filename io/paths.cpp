#include "io/paths.h"

#include <filesystem>
#include <system_error>

namespace fovea::io {

namespace fs = std::filesystem;

std::string behind_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // as Linux follows
  fs::path place = path;
  std::error_code error;
  for (int n = 0; n < kMostLinks && fs::is_symlink(fs::symlink_status(place, error)); ++n) {
    const fs::path target = fs::read_symlink(place, error);
    if (error) break;
    place = place.parent_path() / target;
  }
  return place.string();
}

std::string canonical(const std::string& path) {
  std::error_code error;
  const fs::path place = fs::absolute(behind_links(path), error);
  const fs::path found = fs::weakly_canonical(place, error);
  return (error ? place.lexically_normal() : found).string();
}

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) || canonical(a) == canonical(b);
}

}  // namespace fovea::io
