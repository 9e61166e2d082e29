// How a kernel divides its scratch memory.
#pragma once

#include "cpu/problem_args.h"

namespace fovea::cpu {

/// Hands out parts of a worker's scratch, or of the workspace, in floats; each begins a cache line.
class Layout {
 public:
  std::int64_t take(std::int64_t floats) {
    const std::int64_t at = used_;
    used_ += round_up_to(floats, 16);
    return at;
  }
  [[nodiscard]] std::int64_t floats() const { return used_; }

 private:
  std::int64_t used_ = 0;
};

}  // namespace fovea::cpu
