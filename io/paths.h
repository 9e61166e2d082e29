// Which file a path names.
#pragma once

#include <string>

namespace fovea::io {

/// The path where a file written to `path` belongs: a symbolic link's target, existing or not.
std::string behind_links(const std::string& path);

/// The one absolute path of all that name that place.
std::string canonical(const std::string& path);

/// Whether both name one file, existing or still to be made; hard links do.
bool same_file(const std::string& a, const std::string& b);

}  // namespace fovea::io
