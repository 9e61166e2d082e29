// Which library this is.
#include <dlfcn.h>

#include <fovea/introspect.h>

#include "core/build_config.h"

namespace fovea {

const char* version() { return build::kVersion; }

std::string library_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&version), &info) == 0 || info.dli_fname == nullptr)
    return "unknown";
  return info.dli_fname;
}

}  // namespace fovea
