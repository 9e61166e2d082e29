// What the two unfused kernels have in common.
#pragma once

#include "cpu/problem_args.h"
#include "cpu/unfused_args.h"

namespace fovea::cpu {

/// Floats of a matrix of all heads, padded to whole cache lines.
inline std::int64_t unfused_matrix_floats(const Problem& p) {
  return round_up_to(p.batch * p.q_heads * p.q_len * p.kv_len, 16);
}

inline void run_phase(const ThreadPool& pool, void (*phase)(void*, int), UnfusedArgs& args) {
  args.next_task = 0;
  run_on(pool, phase, &args);
}

}  // namespace fovea::cpu
