// Counters: what was asked, launched, completed and refused, exact under concurrency.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include <fovea/report.h>

#include "contract/problem.h"
#include "core/kernel_table.h"

namespace fovea::counting {

using Counter = std::atomic<std::uint64_t>;

struct PerKernel {
  Counter launched{0}, captured{0}, replayed{0}, completed{0}, failed{0};
};

struct Totals {
  Counter forward_calls{0}, backward_calls{0};
  Counter fallbacks{0}, mask_tiles_skipped{0}, fused_prologues{0}, quantized{0}, staged_copies{0};
  std::array<PerKernel, kMaxKernels> kernels;
  Counter epoch{0};  ///< of resets
};

Totals& totals();

/// The counter of a kind of refusal; the reference stays valid for the process.
Counter& refusals_of(const std::string& kind);

}  // namespace fovea::counting
