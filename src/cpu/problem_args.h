// From a Problem to the plain arguments of the kernels' workers. Compiled for every machine.
#pragma once

#include "contract/kernel.h"
#include "contract/plain_problem.h"
#include "cpu/flash_args.h"

namespace fovea::cpu {

inline std::int64_t round_up_to(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
inline std::int64_t ceil_div(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

/// Dense [batch, heads, rows, columns], or [batch, heads, rows] with columns of stride 1. Data is
/// null where the view is absent or has no elements.
Input input(const TensorView& view);
Output output(const MutableTensorView& view);
/// Of an operand's only segment.
Output output(const MutableOperand& operand);

DenseArgs dense_args(const Problem& problem);

/// Calls the task once for each of the pool's workers.
void run_on(const ThreadPool& pool, void (*task)(void* args, int worker), void* args);

/// What the flash kernels serve.
Refusal supports_flash(const Problem& problem);
/// What the f32 kernels serve.
Refusal supports_dense_f32(const Problem& problem);

}  // namespace fovea::cpu
