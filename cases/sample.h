// Judging long calls by some rows: the oracle is run on slices of the inputs that give the same
// results as the whole.
//
// Forward and dq: a block of queries depends on all keys that it sees, and on no other query. dk
// and dv: a block of keys depends on all queries that see it, since backward is given LSE and out.
#pragma once

#include <vector>

#include "cases/numerics.h"
#include "cases/outputs.h"
#include "cases/run_case.h"

namespace fovea::cases {

/// Whether slices of the case are calls of the contract: dense, one segment, without ALiBi.
bool can_be_sampled(const Case& c);

/// Errors of a run on three blocks of rows. `saved` and `results` are those of the run.
Result<std::vector<ErrorSums>> measure_samples(const Inputs& inputs, const Outputs& results,
                                               const Saved* saved, Direction direction);

}  // namespace fovea::cases
