#include "core/outstanding.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace fovea {
namespace {

/// A mark costs the host time to ask. So runs share one, which moves behind each of them in turn,
/// until there are this many of them: none waits for more than so many others to be seen. A run
/// that a line of proof waits for has its own.
constexpr std::size_t kRunsOfMark = 32;

/// With a mark: it lies behind this run and those before it, back to the one before with a mark.
struct Marked {
  QueuedRun run;
  void* mark = nullptr;
};

/// Runs of one queue, which finish in order. The memory of those that have finished is used again.
class Lane {
 public:
  Lane(const DeviceQueue* queue, int device, std::uint64_t name)
      : queue_(queue), device_(device), name_(name) {
    runs_.reserve(2 * kRunsOfMark);
  }

  [[nodiscard]] bool is(const DeviceQueue* queue, int device, std::uint64_t name) const {
    return queue_ == queue && device_ == device && name_ == name;
  }
  [[nodiscard]] bool empty() const { return runs_.empty(); }

  /// Marks the run, whose work is the last on the stream.
  Status push(QueuedRun run, void* stream) {
    void* last = runs_.empty() ? nullptr : runs_.back().mark;
    const bool shared = last != nullptr && sharing_ < kRunsOfMark;
    const Result<void*> mark = queue_->record(device_, stream, shared ? last : nullptr);
    if (!mark.ok()) return mark.status();
    if (shared) runs_.back().mark = nullptr;
    sharing_ = shared ? sharing_ + 1 : 1;
    if (!run.job->ran[run.plan->subject.row].load(std::memory_order_relaxed))
      sharing_ = kRunsOfMark;
    if (runs_.size() == runs_.capacity() && first_ > 0) {
      runs_.erase(runs_.begin(), runs_.begin() + static_cast<std::ptrdiff_t>(first_));
      finished_ -= first_;
      first_ = 0;
    }
    runs_.push_back({std::move(run), *mark});
    return {};
  }

  /// The oldest run with what became of it, if it has finished.
  std::optional<std::pair<QueuedRun, Status>> pop_finished() {
    if (runs_.empty() || (first_ == finished_ && !find_finished())) return {};
    std::pair<QueuedRun, Status> done{std::move(runs_[first_].run), status_};
    if (++first_ == runs_.size()) {
      runs_.clear();
      first_ = finished_ = 0;
    }
    return done;
  }

 private:
  /// Asks the oldest mark.
  bool find_finished() {
    std::size_t at = first_;
    while (runs_[at].mark == nullptr) ++at;
    const Result<bool> finished = queue_->finished(device_, runs_[at].mark);
    if (finished.ok() && !*finished) return false;
    runs_[at].mark = nullptr;  // spent
    status_ = finished.status();
    finished_ = at + 1;
    return true;
  }

  const DeviceQueue* queue_;
  int device_;
  std::uint64_t name_;
  std::vector<Marked> runs_;
  std::size_t first_ = 0;
  std::size_t finished_ = 0;  ///< runs before this one have finished, with status_
  Status status_;
  std::size_t sharing_ = 0;  ///< runs of the last mark
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
  return all.of(queue, device, queue->queue_of(device, stream)).push(std::move(run), stream);
}

void settle_finished_runs_now_and_then() {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kPause{1};
  static std::atomic<Clock::rep> last{0};
  const Clock::rep now = Clock::now().time_since_epoch().count();
  if (now - last.load(std::memory_order_relaxed) < Clock::duration(kPause).count()) return;
  last.store(now, std::memory_order_relaxed);
  settle_finished_runs();
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
