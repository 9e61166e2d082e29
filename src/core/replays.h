// Replays: runs that a graph has recorded, and how often the device has done them since.
#pragma once

#include "core/outstanding.h"

namespace fovea {

/// Sees to it that a run on the device finds a mark without allocating one.
Status prepare_for_replays(const DeviceQueue& queue, int device);

/// Queues, behind a run that the stream records, the raising of a mark in the device's memory: each
/// replay does it. The run is remembered for as long as the process lives, as a graph may be
/// replayed at any time.
Status follow_replays(QueuedRun run, void* stream);

/// Counts and proves the replays that have finished since the last look; waits for none.
void settle_replays();

}  // namespace fovea
