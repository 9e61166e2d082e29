#include "lm/memory.h"

#include <fstream>
#include <string>

#include <malloc.h>
#include <sys/resource.h>

#include <fovea/plan.h>

#include "lm/tensor.h"

namespace fovea::lm {

std::int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    std::int64_t kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes * 1024;
  }
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

bool reset_peak_resident() {
  release_cached_tensor_memory();
  release_cached_memory();
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  // 5 resets VmHWM: proc(5), clear_refs
  std::ofstream clear("/proc/self/clear_refs");
  clear << '5' << std::flush;
  return clear.good();
}

}  // namespace fovea::lm
