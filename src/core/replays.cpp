#include "core/replays.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/devices.h"
#include "core/status_macros.h"

namespace fovea {
namespace {

struct Recorded {
  QueuedRun run;
  std::uint64_t seen = 0;  ///< replays that are counted
};

/// Marks that adjoin in the memory of a device. Graphs know their addresses, so they never move.
struct Piece {
  static constexpr std::size_t kMarks = 512;
  const DeviceQueue* queue;
  int device;
  std::uint64_t* marks;
  std::vector<Recorded> runs;  ///< of the first marks

  [[nodiscard]] bool has_room_on(const DeviceQueue& on, int index) const {
    return queue == &on && device == index && runs.size() < kMarks;
  }
};

struct Pieces {
  std::mutex mutex;
  std::vector<std::unique_ptr<Piece>> list;

  /// With a free mark.
  Result<Piece*> one_with_room(const DeviceQueue& queue, int device) {
    for (const auto& piece : list)
      if (piece->has_room_on(queue, device)) return piece.get();
    // One number more than there are marks: raised now, so that what raises marks is loaded before
    // a graph is recorded.
    constexpr std::size_t kBytes = (Piece::kMarks + 1) * sizeof(std::uint64_t);
    const Result<void*> memory = zeroed_memory(queue, device, kBytes);
    if (!memory.ok()) return memory.status();
    auto* marks = static_cast<std::uint64_t*>(*memory);
    const Result<void*> stream = queue.own_stream(device);
    Status status = stream.status();
    if (status.ok()) status = queue.count_up(device, *stream, marks + Piece::kMarks);
    if (!status.ok()) {
      queue.free(device, marks);
      return status;
    }
    list.push_back(std::make_unique<Piece>(Piece{&queue, device, marks, {}}));
    list.back()->runs.reserve(Piece::kMarks);
    return list.back().get();
  }
};

Pieces& pieces() {
  static auto* instance = new Pieces;
  return *instance;
}

struct Replays {
  QueuedRun run;
  std::uint64_t count;
};

/// What is new in a piece. A device that has failed has nothing new.
void take_new(Piece& piece, std::vector<Replays>& all) {
  if (piece.runs.empty()) return;
  std::vector<std::uint64_t> now(piece.runs.size());
  const Status status = piece.queue->download(piece.device, now.data(), piece.marks,
                                              now.size() * sizeof(std::uint64_t));
  if (!status.ok()) return;
  for (std::size_t n = 0; n < now.size(); ++n) {
    Recorded& recorded = piece.runs[n];
    if (now[n] == recorded.seen) continue;
    all.push_back({recorded.run, now[n] - recorded.seen});
    recorded.seen = now[n];
  }
}

}  // namespace

Status prepare_for_replays(const DeviceQueue& queue, int device) {
  if (queue.count_up == nullptr) return {};
  Pieces& all = pieces();
  const std::lock_guard lock(all.mutex);
  return all.one_with_room(queue, device).status();
}

Status follow_replays(QueuedRun run, void* stream) {
  const DeviceQueue& queue = *run.plan->queue;
  const int device = run.plan->problem.device.index;
  if (queue.count_up == nullptr) return {};
  Pieces& all = pieces();
  const std::lock_guard lock(all.mutex);
  const Result<Piece*> piece = all.one_with_room(queue, device);
  if (!piece.ok()) return piece.status();
  std::vector<Recorded>& runs = (*piece)->runs;
  FOVEA_RETURN_IF_ERROR(queue.count_up(device, stream, (*piece)->marks + runs.size()));
  runs.push_back({std::move(run)});
  return {};
}

void settle_replays() {
  std::vector<Replays> found;
  {
    Pieces& all = pieces();
    const std::lock_guard lock(all.mutex);
    for (const auto& piece : all.list) take_new(*piece, found);
  }
  // Outside the lock: a line goes to the application's sink.
  for (const Replays& replays : found)
    settle_replay(*replays.run.plan, *replays.run.job, replays.count);
}

}  // namespace fovea
