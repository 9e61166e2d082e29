// cpu.unfused.backward: gradients of attention with its matrices, as a framework without fused
// attention evaluates them.
//
//   P = exp(scale Q K^T - lse) over the visible keys, dP = dO V^T
//   dS = P o (dP - delta),  delta = rowsum(dO o O) - dlse
//   dQ = scale dS K,  dV = P^T dO,  dK = scale dS^T Q
//
//   q, dq [batch, q_heads, q_len, head_dim]; k, dk [batch, kv_heads, kv_len, head_dim];
//   v, dv [batch, kv_heads, kv_len, v_head_dim]; out, dout [batch, q_heads, q_len, v_head_dim];
//   lse, dlse [batch, q_heads, q_len]; any strides
//
// Passes over the whole call, each shared among the workers in blocks of 192 rows of a head of the
// result (unfused_tasks.cpp).
//
// Memory: P and dS for all heads at once, 2 * batch * q_heads * q_len * kv_len floats, and 256 KB a
// worker.
//
// Serves: f32, any head dim and strides, grouped heads, bands, dlse. Runs the best instruction set.
#include "contract/kernel.h"
#include "cpu/isa.h"
#include "cpu/unfused_problem.h"

namespace fovea::cpu {
namespace {

std::size_t workspace_bytes(const Problem& p, int threads) {
  return static_cast<std::size_t>(2 * unfused_matrix_floats(p) + kUnfusedScratch * threads) *
         sizeof(float);
}

Status run(const Problem& p, const Launch& launch) {
  UnfusedArgs args{};
  static_cast<DenseArgs&>(args) = dense_args(p);
  args.saved_out = input(p.saved_out);
  args.saved_lse = input(p.saved_lse);
  args.dout = input(p.dout);
  args.dlse = input(p.dlse);
  args.dq = output(p.dq);
  args.dk = output(p.dk);
  args.dv = output(p.dv);
  args.probabilities = reinterpret_cast<float*>(launch.workspace);
  args.gradients = args.probabilities + unfused_matrix_floats(p);
  args.scratch = args.gradients + unfused_matrix_floats(p);
  const UnfusedWorkers& workers = unfused_workers();
  for (const auto phase : {workers.scores, workers.value_scores, workers.differentiate})
    run_phase(*launch.pool, phase, args);
  if (args.dq.data != nullptr) run_phase(*launch.pool, workers.query_gradients, args);
  run_phase(*launch.pool, workers.key_gradients, args);
  return {};
}

}  // namespace
}  // namespace fovea::cpu

namespace fovea {

extern const Kernel cpu_unfused_backward;
const Kernel cpu_unfused_backward = {"cpu.unfused.backward",
                                     "cpu",
                                     "unfused",
                                     Direction::backward,
                                     DeviceType::cpu,
                                     false,
                                     cpu::runs_on_every_cpu,
                                     cpu::supports_dense_f32,
                                     cpu::workspace_bytes,
                                     cpu::run};

}  // namespace fovea
