// cpu.unfused.forward: attention with its matrix of scores, as a framework without fused attention
// evaluates it. What flash is compared with, and what serves where it is asked for.
//
//   S = Q K^T;  P = softmax(scale S) over the visible keys, lse;  out = P V
//
//   q [batch, q_heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim],
//   v [batch, kv_heads, kv_len, v_head_dim] -> out [batch, q_heads, q_len, v_head_dim],
//   lse [batch, q_heads, q_len]; any strides
//
// Three passes over the whole call, each shared among the workers in blocks of 192 rows of a head
// (unfused_tasks.cpp). All of S is computed, visible or not.
//
// Memory: P for all heads at once, batch * q_heads * q_len * kv_len floats, and 256 KB a worker.
//
// Serves: f32, any head dim and strides, grouped heads, bands. Runs the best instruction set.
#include "contract/kernel.h"
#include "cpu/isa.h"
#include "cpu/unfused_problem.h"

namespace fovea::cpu {

const UnfusedWorkers& unfused_workers() {
#if defined(__x86_64__)
  if (best_isa() == Isa::avx512) return unfused_workers_avx512;
  if (best_isa() == Isa::avx2) return unfused_workers_avx2;
#endif
  return unfused_workers_baseline;
}

namespace {

std::size_t workspace_bytes(const Problem& p, int threads) {
  return static_cast<std::size_t>(unfused_matrix_floats(p) + kUnfusedScratch * threads) *
         sizeof(float);
}

Status run(const Problem& p, const Launch& launch) {
  UnfusedArgs args{};
  static_cast<DenseArgs&>(args) = dense_args(p);
  args.out = output(p.out);
  args.lse = output(p.lse);
  args.probabilities = reinterpret_cast<float*>(launch.workspace);
  args.scratch = args.probabilities + unfused_matrix_floats(p);
  const UnfusedWorkers& workers = unfused_workers();
  for (const auto phase : {workers.scores, workers.softmax, workers.values})
    run_phase(*launch.pool, phase, args);
  return {};
}

}  // namespace
}  // namespace fovea::cpu

namespace fovea {

extern const Kernel cpu_unfused_forward;
const Kernel cpu_unfused_forward = {"cpu.unfused.forward",
                                    "cpu",
                                    "unfused",
                                    Direction::forward,
                                    DeviceType::cpu,
                                    false,
                                    cpu::runs_on_every_cpu,
                                    cpu::supports_dense_f32,
                                    cpu::workspace_bytes,
                                    cpu::run};

}  // namespace fovea
