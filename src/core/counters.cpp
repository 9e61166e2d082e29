#include "core/counters.h"

#include <map>
#include <memory>
#include <mutex>

#include "contract/format.h"
#include "core/device_totals.h"
#include "core/json_text.h"
#include "core/outstanding.h"
#include "core/providers.h"
#include "core/replays.h"

namespace fovea {
namespace counting {
namespace {

struct Refusals {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Counter>> by_kind;
};

Refusals& refusals() {
  static auto* instance = new Refusals;
  return *instance;
}

}  // namespace

Totals& totals() {
  static auto* instance = new Totals;
  return *instance;
}

Counter& refusals_of(const std::string& kind) {
  Refusals& all = refusals();
  const std::lock_guard lock(all.mutex);
  auto& counter = all.by_kind[kind];
  if (!counter) counter = std::make_unique<Counter>(0);
  return *counter;
}

}  // namespace counting

Counters counters() {
  settle_finished_runs();
  settle_replays();
  settle_device_totals();
  const counting::Totals& t = counting::totals();
  Counters c;
  c.forward_calls = t.forward_calls;
  c.backward_calls = t.backward_calls;
  c.fallbacks = t.fallbacks;
  c.mask_tiles_skipped = t.mask_tiles_skipped;
  c.fused_prologues = t.fused_prologues;
  c.quantized = t.quantized;
  c.staged_copies = t.staged_copies;
  const auto table = kernel_table();
  for (std::size_t n = 0; n < table.size(); ++n) {
    const auto& k = t.kernels[n];
    if (k.launched != 0 || k.captured != 0 || k.replayed != 0)
      c.kernels.push_back(
          {table[n]->id, k.launched, k.captured, k.replayed, k.completed, k.failed});
  }
  for (KernelCount& provider : provider_counts()) c.kernels.push_back(std::move(provider));
  auto& all = counting::refusals();
  const std::lock_guard lock(all.mutex);
  for (const auto& [kind, counter] : all.by_kind)
    if (*counter != 0) c.refusals.push_back({kind, *counter});
  return c;
}

std::string counters_json() {
  const Counters c = counters();
  std::string kernels, refusals;
  for (const KernelCount& k : c.kernels)
    kernels += formatted(
        "{}{}:{{\"launched\":{},\"captured\":{},\"replayed\":{},\"completed\":{},\"failed\":{}}}",
        kernels.empty() ? "" : ",", json_quoted(k.kernel), k.launched, k.captured, k.replayed,
        k.completed, k.failed);
  for (const RefusalCount& r : c.refusals)
    refusals += formatted("{}{}:{}", refusals.empty() ? "" : ",", json_quoted(r.reason), r.count);
  return formatted(
      "{{\"forward_calls\":{},\"backward_calls\":{},\"fallbacks\":{},\"mask_tiles_skipped\":{},"
      "\"fused_prologues\":{},\"quantized\":{},\"staged_copies\":{},\"kernels\":{{{}}},"
      "\"refusals\":{{{}}}}}",
      c.forward_calls, c.backward_calls, c.fallbacks, c.mask_tiles_skipped, c.fused_prologues,
      c.quantized, c.staged_copies, kernels, refusals);
}

void reset_counters() {
  settle_finished_runs();
  settle_replays();
  settle_device_totals();
  counting::Totals& t = counting::totals();
  ++t.epoch;
  for (auto* counter : {&t.forward_calls, &t.backward_calls, &t.fallbacks, &t.mask_tiles_skipped,
                        &t.fused_prologues, &t.quantized, &t.staged_copies})
    *counter = 0;
  for (auto& k : t.kernels) k.launched = k.captured = k.replayed = k.completed = k.failed = 0;
  reset_provider_counts();
  auto& all = counting::refusals();
  const std::lock_guard lock(all.mutex);
  for (auto& [kind, counter] : all.by_kind) *counter = 0;
}

}  // namespace fovea
