// What the unfused kernels' phases are called with: plain data, shared by unfused_tasks.cpp, which
// is compiled for each instruction set, and the kernels' own files.
#pragma once

#include "cpu/flash_args.h"

namespace fovea::cpu {

/// Rows of a task, and the block of the right operand that is packed at a time [depth, columns].
inline constexpr std::int64_t kUnfusedRows = 192;
inline constexpr std::int64_t kUnfusedDepth = 256, kUnfusedColumns = 256;
/// Floats of a worker's scratch.
inline constexpr std::int64_t kUnfusedScratch = kUnfusedDepth * kUnfusedColumns;

struct UnfusedArgs : DenseArgs {
  Input saved_out, dout, saved_lse, dlse;
  Output out, lse, dq, dk, dv;
  float* probabilities;  ///< S, then P [batch, q_heads, q_len, kv_len]
  float* gradients;      ///< backward: dP, then dS, likewise
  float* scratch;        ///< kUnfusedScratch floats a worker
};

/// Phases, each run by all workers before the next begins; next_task = 0 at the start of each.
struct UnfusedWorkers {
  // S = Q K^T;  P = softmax(scale S), lse;  out = P V
  void (*scores)(void* unfused_args, int worker);
  void (*softmax)(void* unfused_args, int worker);
  void (*values)(void* unfused_args, int worker);
  // dP = dO V^T;  P = exp(scale S - lse), dS = P o (dP - delta);  dQ = scale dS K
  void (*value_scores)(void* unfused_args, int worker);
  void (*differentiate)(void* unfused_args, int worker);
  void (*query_gradients)(void* unfused_args, int worker);
  // dV = P^T dO, dK = scale dS^T Q
  void (*key_gradients)(void* unfused_args, int worker);
};

extern const UnfusedWorkers unfused_workers_baseline, unfused_workers_avx2, unfused_workers_avx512;

/// Those of the best instruction set that is available.
const UnfusedWorkers& unfused_workers();

}  // namespace fovea::cpu
