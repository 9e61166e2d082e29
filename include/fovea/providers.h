// Attention of others that exists at run time only (a Python package, say): ranked here among
// Fovea's own, executed by the caller, who reports what became of it. The lines, the counters and
// the jobs are the same as those of kernels.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fovea/export.h>
#include <fovea/plan.h>
#include <fovea/report.h>
#include <fovea/status.h>

namespace fovea {

/// One candidate.
struct Provider {
  std::string name;            ///< "flash_attn"
  int priority = 0;            ///< larger is tried first; equal ones by name
  bool explicit_only = false;  ///< never tried unless it is chosen by name
  std::string refusal;         ///< why it does not serve this call; empty: it may be tried
  std::string version, file;   ///< of what is loaded, for proof
};

/// Who is tried, first first, and who is not and why.
struct Ranking {
  std::vector<std::string> order;
  std::vector<PassedOver> passed_over;  ///< by priority
};

/// Ranks candidates by priority. One chosen by name (`choice.kernel`) comes first; the others
/// follow as its fallbacks, but for `choice.strict`, which leaves the first alone. Errors: an
/// unknown or doubled name (invalid); a choice by name that cannot serve, or nobody who can
/// (unsupported, with the reasons).
FOVEA_API Result<Ranking> rank_providers(std::span<const Provider> candidates,
                                         const Choice& choice = {});

/// A provider's work has finished: counted, and proved to the job (null: the process's) once.
/// `description` says what was computed, and where: "d128 bf16 device=cuda:0".
FOVEA_API void provider_ran(const Provider& provider, std::string_view description,
                            Job* job = nullptr);

/// A provider was tried and failed: counted, and said to the job once, with who served instead
/// (empty: nobody).
FOVEA_API void provider_failed(const Provider& provider, std::string_view reason,
                               std::string_view served_by, Job* job = nullptr);

}  // namespace fovea
