#include "api/plan_cache.h"

#include <bitset>
#include <list>
#include <mutex>

#include "core/devices.h"
#include "core/select.h"
#include "core/status_macros.h"
#include "core/validate.h"
#include "core/views.h"

namespace fovea {
namespace {

constexpr std::size_t kCapacity = 64;

/// The options that a plan depends on, the environment's choice included.
struct OptionsKey {
  EffectiveChoice choice;
  bool deterministic, self_check, autotune;
  int num_threads;
  ThreadPool pool;

  explicit OptionsKey(const PlanOptions& o)
      : choice(effective_choice(o.choice)),
        deterministic(o.deterministic),
        self_check(o.self_check),
        autotune(o.autotune),
        num_threads(o.num_threads),
        pool(o.pool == nullptr ? ThreadPool{} : *o.pool) {}

  bool operator==(const OptionsKey& other) const {
    return choice.kernel == other.choice.kernel && choice.backend == other.choice.backend &&
           choice.strict == other.choice.strict && deterministic == other.deterministic &&
           self_check == other.self_check && autotune == other.autotune &&
           num_threads == other.num_threads && pool.threads == other.pool.threads &&
           pool.self == other.pool.self && pool.run == other.pool.run;
  }
};

/// Which tensors do not begin at a multiple of 16 bytes: some kernels need some of them to, and a
/// plan that was made for those would fail with others.
using Unaligned = std::bitset<kMaxViews>;

template <class Args>
Unaligned unaligned_of(const Args& args) {
  Unaligned unaligned;
  std::size_t n = 0;
  visit_views(args, [&](const TensorView& view, const char*, Role) {
    if (reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0) unaligned.set(n);
    ++n;
  });
  return unaligned;
}

struct Entry {
  std::uint64_t hash;
  Unaligned unaligned;
  OptionsKey options;
  std::shared_ptr<const PlanState> plan;
};

struct Cache {
  std::mutex mutex;
  std::list<Entry> entries;  ///< most recently used first
};

Cache& cache() {
  static auto* instance = new Cache;
  return *instance;
}

template <class Args>
Result<std::shared_ptr<const PlanState>> lookup(const Args& args, const CallOptions& options) {
  const std::uint64_t hash = structure_hash(args);
  const Unaligned unaligned = unaligned_of(args);
  const OptionsKey key(options.plan);
  Cache& c = cache();
  {
    const std::lock_guard lock(c.mutex);
    for (auto entry = c.entries.begin(); entry != c.entries.end(); ++entry) {
      if (entry->hash != hash || entry->unaligned != unaligned || !(entry->options == key))
        continue;
      if (!check_fit(*entry->plan, args).ok()) continue;
      c.entries.splice(c.entries.begin(), c.entries, entry);
      return entry->plan;
    }
  }
  FOVEA_RETURN_IF_ERROR(check_may_plan(std::is_same_v<Args, ForwardArgs> ? "forward" : "backward",
                                       args.params.q.segments[0].tensor.device,
                                       options.run.stream));
  auto plan = make_plan(args, options.plan);
  if (!plan.ok()) return plan;
  const std::lock_guard lock(c.mutex);
  c.entries.push_front({hash, unaligned, key, *plan});
  if (c.entries.size() > kCapacity) c.entries.pop_back();
  return plan;
}

}  // namespace

Result<std::shared_ptr<const PlanState>> cached_plan(const ForwardArgs& args,
                                                     const CallOptions& options) {
  return lookup(args, options);
}
Result<std::shared_ptr<const PlanState>> cached_plan(const BackwardArgs& args,
                                                     const CallOptions& options) {
  return lookup(args, options);
}

void clear_plan_cache() {
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);
  c.entries.clear();
}

}  // namespace fovea
