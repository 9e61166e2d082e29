// Random cases over the whole contract, or over what one kernel serves.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>

#include "cases/case.h"

namespace fovea::cases {

inline constexpr std::size_t kTraitCount = 42;

/// Which traits (a mask, a window, bf16, ...) random cases may have, beyond dense f32 calls.
using Scope = std::bitset<kTraitCount>;

Scope whole_scope();

/// Whether the library would run the case on `kernel`.
bool would_serve(const std::string& kernel, const Case& c);

/// What `kernel` serves, found by asking the library for a plan with each trait; everything where
/// it does not serve f32.
Scope scope_of(const std::string& kernel);

/// The same case for the same seed and scope, small enough to run thousands.
Case random_case(std::uint64_t seed, const Scope& scope);

}  // namespace fovea::cases
