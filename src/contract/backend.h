// Backend: what dispatch asks of a family of kernels besides the kernels themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <fovea/introspect.h>
#include <fovea/plan.h>

namespace fovea {

/// A validated merge: out [batch, heads, rows, dim], lse (may be absent) [batch, heads, rows].
struct MergeProblem {
  std::span<const PartialResult> parts;
  TensorView sinks;
  MutableTensorView out, lse;
  void* stream = nullptr;  ///< of a device with streams: where the merge is queued
};

/// A kind of device that has its own memory and works through queues (streams). `device` is the
/// ordinal. Nothing here waits for the device but where it says so, and nothing disturbs the
/// capture of a graph, be it in this thread or another.
struct DeviceQueue {
  /// Memory that begins at a multiple of 256 bytes, not initialised. May wait.
  Result<void*> (*allocate)(int device, std::size_t bytes);
  /// Waits until nothing that was queued can still use it.
  void (*free)(int device, void* data);
  /// Copies from and to host memory. They have happened on return, and wait for no stream of the
  /// caller's.
  Status (*upload)(int device, void* to, const void* from, std::size_t bytes);
  Status (*download)(int device, void* to, const void* from, std::size_t bytes);
  /// Waits for what was queued on the stream; reports it if that has failed.
  Status (*synchronize)(int device, void* stream);
  /// A stream that no caller uses, for self-checks.
  Result<void*> (*own_stream)(int device);
  /// Whether the stream records a graph instead of working.
  Result<bool> (*capturing)(int device, void* stream);
  /// Names the queue behind a stream: other queues have other names as long as the process lives,
  /// though their handles may be the same.
  std::uint64_t (*queue_of)(int device, void* stream);
  /// A mark behind all that was queued on the stream so far: a new one, or `mark`, which then
  /// lies there instead.
  Result<void*> (*record)(int device, void* stream, void* mark);
  /// Whether the work before a mark has finished; an error when it has failed. Any answer but
  /// "not yet" ends the mark's life.
  Result<bool> (*finished)(int device, void* mark);
  /// Bytes that could be allocated now. Null: not known.
  Result<std::size_t> (*free_bytes)(int device) = nullptr;
  /// The driver's version, for which measured choices are kept. Null: not known.
  std::string (*driver)() = nullptr;
  /// Queues that the number at `count`, in the device's memory, grows by 1. Where the stream
  /// records a graph, each replay does it. Null: replays are not counted.
  Status (*count_up)(int device, void* stream, std::uint64_t* count) = nullptr;
};

struct Backend {
  DeviceType device;
  std::vector<DeviceInfo> (*devices)();
  /// CPU: how many workers to use unless the caller says otherwise. Others: null.
  int (*default_threads)();
  /// CPU: the library's pool seen as `threads` workers; lives as long as the process. Others: null.
  const ThreadPool& (*pool)(int threads);
  Status (*merge)(const MergeProblem& problem);
  /// Why devices() is empty. CPU: null.
  std::string (*unavailable)() = nullptr;
  /// Null: memory is the host's, and kernels return after completion.
  const DeviceQueue* queue = nullptr;
};

}  // namespace fovea
