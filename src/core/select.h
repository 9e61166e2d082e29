// Selection: the first kernel of the table that may serve and does, with the reasons for the
// others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <fovea/plan.h>

#include "contract/kernel.h"

namespace fovea {

struct Considered {
  const Kernel* kernel;
  Refusal refusal;  ///< why it does not serve
};

struct Selection {
  const Kernel* kernel = nullptr;       ///< null: nothing serves
  std::vector<Considered> passed_over;  ///< better-placed kernels; all of them when nothing serves
  /// How many of them stand before the choice by priority; a measured choice may add more.
  std::size_t by_priority = SIZE_MAX;
  /// The first of those that this machine could have run and nobody excluded, but for specialists
  /// outside their class: its refusal makes the choice a fallback. Null otherwise.
  const Considered* preferred() const;
};

/// The choice in force: the call's, else FOVEA_KERNEL / FOVEA_BACKEND. `source` names where from.
struct EffectiveChoice {
  std::string kernel, backend;
  bool strict = false;
  const char* source = "";
};
EffectiveChoice effective_choice(const Choice& choice);

/// Why `kernel` would not serve `problem` under `choice`, without running a self-check.
Refusal consider(const Kernel& kernel, const Problem& problem, const EffectiveChoice& choice);

/// Chooses among the kernels of the tensors' kind of device. With `self_check`, a kernel must pass
/// its check for the problem's class to be chosen. Errors: an unknown name (invalid); an explicit
/// choice that cannot serve, nothing that serves, or a fallback under strict (unsupported).
Result<Selection> select(const Problem& problem, const EffectiveChoice& choice, bool self_check);

}  // namespace fovea
