#include "core/outstanding.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace fovea {
namespace {

struct Marked {
  QueuedRun run;
  void* mark = nullptr;
};

/// Runs of one queue, which finish in order. The memory of those that have finished is used again.
class Lane {
 public:
  Lane(const DeviceQueue* queue, int device, std::uint64_t name)
      : queue_(queue), device_(device), name_(name) {
    constexpr std::size_t kUsual = 64;
    runs_.reserve(kUsual);
  }

  [[nodiscard]] bool is(const DeviceQueue* queue, int device, std::uint64_t name) const {
    return queue_ == queue && device_ == device && name_ == name;
  }
  [[nodiscard]] bool empty() const { return runs_.empty(); }

  void push(Marked marked) {
    if (runs_.size() == runs_.capacity() && first_ > 0) {
      runs_.erase(runs_.begin(), runs_.begin() + static_cast<std::ptrdiff_t>(first_));
      first_ = 0;
    }
    runs_.push_back(std::move(marked));
  }

  /// The oldest run with what became of it, if it has finished.
  std::optional<std::pair<QueuedRun, Status>> pop_finished() {
    if (runs_.empty()) return {};
    const Result<bool> finished = queue_->finished(device_, runs_[first_].mark);
    if (finished.ok() && !*finished) return {};
    std::pair<QueuedRun, Status> done{std::move(runs_[first_].run), finished.status()};
    if (++first_ == runs_.size()) {
      runs_.clear();
      first_ = 0;
    }
    return done;
  }

 private:
  const DeviceQueue* queue_;
  int device_;
  std::uint64_t name_;
  std::vector<Marked> runs_;
  std::size_t first_ = 0;
};

struct Lanes {
  std::mutex mutex;
  std::vector<Lane> list;

  Lane& of(const DeviceQueue* queue, int device, std::uint64_t name) {
    const auto same = std::find_if(list.begin(), list.end(),
                                   [&](const Lane& lane) { return lane.is(queue, device, name); });
    if (same != list.end()) return *same;
    std::erase_if(list, [](const Lane& lane) { return lane.empty(); });
    return list.emplace_back(queue, device, name);
  }

  std::optional<std::pair<QueuedRun, Status>> pop_finished() {
    const std::lock_guard lock(mutex);
    for (Lane& lane : list)
      if (auto done = lane.pop_finished()) return done;
    return {};
  }
};

Lanes& lanes() {
  static auto* instance = new Lanes;
  return *instance;
}

}  // namespace

Status follow(QueuedRun run, void* stream) {
  const DeviceQueue* queue = run.plan->queue;
  const int device = run.plan->problem.device.index;
  Lanes& all = lanes();
  // Marks are recorded under the lock, so that a lane has them in the order of its queue.
  const std::lock_guard lock(all.mutex);
  const Result<void*> mark = queue->record(device, stream);
  if (!mark.ok()) return mark.status();
  all.of(queue, device, queue->queue_of(device, stream)).push({std::move(run), *mark});
  return {};
}

void settle_finished_runs() {
  // One at a time and outside the lock: settling prints, and the sink is the application's.
  while (auto done = lanes().pop_finished()) {
    const auto& [run, status] = *done;
    settle(*run.plan, *run.job, run.epoch, status);
    if (status.ok()) continue;
    const std::lock_guard lock(run.job->mutex);
    if (run.job->failure.ok()) run.job->failure = status;
  }
}

}  // namespace fovea
