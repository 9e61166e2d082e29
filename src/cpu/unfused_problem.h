// What the two unfused kernels have in common.
#pragma once

#include "cpu/problem_args.h"
#include "cpu/unfused_args.h"

namespace fovea::cpu {

/// Floats of a matrix of all heads, padded to whole cache lines. A size that no memory has
/// saturates, so that the allocation fails and nothing else does.
inline std::int64_t unfused_matrix_floats(const Problem& p) {
  constexpr std::int64_t kMost = std::int64_t{1} << 59;  // two in bytes fit 63 bits
  std::int64_t floats = 0;
  const std::int64_t rows = p.batch * p.q_heads * p.q_len;  // lse has as many elements
  if (__builtin_mul_overflow(rows, p.kv_len, &floats) || floats > kMost) return kMost;
  return round_up_to(floats, 16);
}

inline void run_phase(const ThreadPool& pool, void (*phase)(void*, int), UnfusedArgs& args) {
  args.next_task = 0;
  run_on(pool, phase, &args);
}

}  // namespace fovea::cpu
