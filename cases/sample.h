// Judging long calls by some rows: the oracle is run on slices of the inputs that give the same
// results as the whole.
//
// Forward and dq: a block of queries depends on all keys that it sees, and on no other query. dk
// and dv depend on everything in their head: the slice is one KV head of one sequence.
#pragma once

#include <vector>

#include "cases/numerics.h"
#include "cases/outputs.h"
#include "cases/run_case.h"

namespace fovea::cases {

/// Whether slices of the case are calls of the contract: dense, one segment, without ALiBi.
bool can_be_sampled(const Case& c);

/// Errors of a run on three blocks of queries and, for dk and dv, one KV head. `saved` and
/// `results` are those of the run.
Result<std::vector<ErrorSums>> measure_samples(const Inputs& inputs, const Outputs& results,
                                               const Saved* saved, Direction direction);

}  // namespace fovea::cases
