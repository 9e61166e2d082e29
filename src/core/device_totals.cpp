#include "core/device_totals.h"

#include <mutex>
#include <vector>

#include "core/counters.h"
#include "core/devices.h"

namespace fovea {
namespace {

struct Total {
  const DeviceQueue* queue;
  int device;
  std::uint64_t* number;
  std::uint64_t seen;
};

struct AllTotals {
  std::mutex mutex;
  std::vector<Total> list;
};

AllTotals& all_totals() {
  static auto* instance = new AllTotals;
  return *instance;
}

}  // namespace

Result<std::uint64_t*> mask_tiles_total(const DeviceQueue& queue, int device) {
  AllTotals& all = all_totals();
  const std::lock_guard lock(all.mutex);
  for (const Total& total : all.list)
    if (total.queue == &queue && total.device == device) return total.number;
  const Result<void*> memory = zeroed_memory(queue, device, sizeof(std::uint64_t));
  if (!memory.ok()) return memory.status();
  all.list.push_back({&queue, device, static_cast<std::uint64_t*>(*memory), 0});
  return all.list.back().number;
}

void settle_device_totals() {
  AllTotals& all = all_totals();
  const std::lock_guard lock(all.mutex);
  for (Total& total : all.list) {
    std::uint64_t now = 0;
    // A device that has failed has nothing new.
    if (!total.queue->download(total.device, &now, total.number, sizeof(now)).ok()) continue;
    counting::totals().mask_tiles_skipped += now - total.seen;
    total.seen = now;
  }
}

}  // namespace fovea
