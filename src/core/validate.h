// Validation: from what the caller gave to the Problem that kernels see, or a message that says why
// not. Everything a kernel may rely on is checked here, once.
#pragma once

#include <cstdint>
#include <vector>

#include <fovea/attention.h>
#include <fovea/status.h>

#include "contract/problem.h"

namespace fovea {

/// Checks shapes, dtypes, devices, options and memory, and derives the Problem.
Result<Problem> validate(const ForwardArgs& args, bool deterministic = false);
Result<Problem> validate(const BackwardArgs& args, bool deterministic = false);

/// What a plan fixes: everything but data pointers, dropout seed and offset, and RoPE offsets.
using Structure = std::vector<std::uint64_t>;

Structure structure_of(const ForwardArgs& args);
Structure structure_of(const BackwardArgs& args);

/// Whether `args` have the structure that was planned; says what differs otherwise.
Status check_structure(const Structure& planned, const ForwardArgs& args);
Status check_structure(const Structure& planned, const BackwardArgs& args);

/// Gives `problem`, as planned, the data pointers, seed and offsets of `args`, and checks what
/// depends on them again.
Status rebind(Problem& problem, const ForwardArgs& args);
Status rebind(Problem& problem, const BackwardArgs& args);

/// A hash of the structure.
std::uint64_t structure_hash(const ForwardArgs& args);
std::uint64_t structure_hash(const BackwardArgs& args);

}  // namespace fovea
