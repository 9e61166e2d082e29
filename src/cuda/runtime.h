// The CUDA driver as this backend sees it: a real one, over the CUDA runtime, and an emulated one.
//
// Every entry leaves the calling thread's current device as it was. Errors that stick to a device
// come back from each call, with their CUDA name. Streams are cudaStream_t.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <fovea/status.h>

#include "cuda/launch.h"
#include "cuda/tensor_map.h"

namespace fovea::cuda {

struct DeviceProperties {
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  std::size_t shared_bytes = 0;  ///< dynamic shared memory that a block may ask for
};

/// Work that was in a stream when the mark was made. Spent once completed() has said so.
struct Mark {
  int device = -1;
  void* event = nullptr;
};

class Runtime {
 public:
  virtual ~Runtime() = default;

  /// Why no device can be used (no driver, no device, a driver that is too old), or empty. Lives as
  /// long as the program, as does what devices() shows.
  virtual const std::string& unavailable() = 0;
  virtual std::span<const DeviceProperties> devices() = 0;
  virtual bool emulated() const = 0;
  /// "driver 13.0, run time 13.0"
  virtual std::string driver() = 0;

  // In stream order; without allocation or waiting.

  virtual Status launch(int device, const Entry& entry, LaunchShape shape, const void* args,
                        std::size_t args_bytes, void* stream) = 0;
  /// Sets bytes to 0.
  virtual Status clear(int device, void* data, std::size_t bytes, void* stream) = 0;
  /// A tensor as the copy engine of sm_90 sees it; done on the host, at once.
  virtual Status encode(TensorMap& to, const TensorBox& from) = 0;
  /// Whether the stream is being captured into a graph.
  virtual Result<bool> capturing(int device, void* stream) = 0;
  /// Names a stream for as long as the process lives; handles are used again.
  virtual std::uint64_t stream_id(int device, void* stream) = 0;
  /// A new mark, or an unspent one that is moved behind what is in the stream by now. Marks come
  /// from a pool, which grows to as many as are unspent at one time.
  virtual Result<Mark> record(int device, void* stream, Mark mark = {}) = 0;
  /// Whether all before the mark is done. Then, and after an error, the mark is spent and empty.
  virtual Result<bool> completed(Mark& mark) = 0;

  // For self-checks, workspaces and tests; these may wait.

  /// At least 256-byte aligned.
  virtual Result<void*> allocate(int device, std::size_t bytes) = 0;
  virtual Status free(int device, void* data) = 0;
  virtual Result<std::size_t> free_bytes(int device) = 0;
  virtual Status upload(int device, void* to, const void* from, std::size_t bytes) = 0;
  virtual Status download(int device, void* to, const void* from, std::size_t bytes) = 0;
  /// A stream of this library's own, which does not wait for the legacy default stream.
  virtual Result<void*> own_stream(int device) = 0;
  virtual Status synchronize(int device, void* stream) = 0;
};

/// The emulated runtime where the environment has FOVEA_CUDA_EMULATE=1 at first use, else the real
/// one. One that is not built says so as unavailable().
Runtime& runtime();

template <class Args>
Status launch(int device, const Entry& entry, LaunchShape shape, const Args& args, void* stream) {
  static_assert(std::is_trivially_copyable_v<Args> && sizeof(Args) <= kMostArgumentBytes);
  return runtime().launch(device, entry, shape, &args, sizeof(Args), stream);
}

// For the runtimes.

Runtime& real_runtime();
Runtime& emulated_runtime();

/// Refuses what no device can launch, and what this one cannot.
Status check_launch(std::span<const DeviceProperties> devices, int device, const Entry& entry,
                    LaunchShape shape, std::size_t args_bytes);

/// What a block may ask for, FOVEA_CUDA_SHARED_KB being able to simulate a device that has less.
std::size_t shared_limit(std::size_t device_bytes);

}  // namespace fovea::cuda
