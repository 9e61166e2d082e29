// Instruction sets of this CPU, as far as FOVEA_CPU_ISA (portable, avx2, avx512, avx512bf16,
// amxbf16) allows them.
#pragma once

#include <string>

#include "contract/refusal.h"

namespace fovea::cpu {

enum class Isa { portable, avx2, avx512, avx512bf16, amxbf16 };

/// Whether kernels compiled for `isa` may run here. FOVEA_CPU_ISA is read once.
Refusal isa_available(Isa isa);

/// Whether products of bf16 pairs take longer here than the same products in f32: by the maker of
/// the CPU, so that a choice does not depend on a measurement.
bool pairs_are_slow();

/// The availability of kernels that need no instruction set of their own.
inline Refusal runs_on_every_cpu(const Device&) { return Refusal::accept(); }

/// The best instruction set for f32 that is available.
Isa best_isa();

/// The CPU's model name, and the instruction sets it has that matter here.
std::string model_name();
std::string capabilities();

}  // namespace fovea::cpu
