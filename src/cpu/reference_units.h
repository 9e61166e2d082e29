// How the reference kernels share work: one unit is one KV head of one sequence with all its query
// heads. A unit is computed by one worker in a fixed order, so results do not depend on how many
// workers there are.
#pragma once

#include <cstdint>

#include <fovea/plan.h>

#include "contract/problem.h"
#include "contract/refusal.h"

namespace fovea::reference {

struct Unit {
  std::int64_t batch, kv_head;
};

inline std::int64_t unit_count(const Problem& p) { return p.batch * p.kv_heads; }

/// Calls work(worker, index, unit) once for each unit.
template <class Work>
void for_each_unit(const Problem& problem, const ThreadPool& pool, Work&& work) {
  struct Shared {
    const Problem& problem;
    int threads;
    Work& work;
  } shared{problem, pool.threads, work};
  pool.run(
      pool.self,
      [](void* arg, int worker) {
        auto& s = *static_cast<Shared*>(arg);
        for (std::int64_t u = worker; u < unit_count(s.problem); u += s.threads)
          s.work(worker, u, Unit{u / s.problem.kv_heads, u % s.problem.kv_heads});
      },
      &shared);
}

}  // namespace fovea::reference
