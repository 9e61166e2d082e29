// The emulated device: one, whose memory is the host's and whose streams have always finished.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

#include "contract/format.h"
#include "cuda/emulation.h"
#include "cuda/runtime.h"

namespace fovea::cuda {
namespace {

std::atomic<emulation::Streams> streams;

class EmulatedRuntime final : public Runtime {
 public:
  const std::string& unavailable() override { return available_; }
  std::span<const DeviceProperties> devices() override { return {&properties_, 1}; }
  bool emulated() const override { return true; }
  std::string driver() override { return "emulated"; }

  Status launch(int device, const Entry& entry, LaunchShape shape, const void* args,
                std::size_t args_bytes, void*) override {
    if (Status status = check_launch(devices(), device, entry, shape, args_bytes); !status.ok())
      return status;
    return emulation::launch(entry, shape, args);
  }

  Status clear(int device, void* data, std::size_t bytes, void*) override {
    return work(device, [&] { std::fill_n(static_cast<std::byte*>(data), bytes, std::byte{0}); });
  }

  Status encode(TensorMap& to, const TensorBox& from) override {
    return emulation::encode(to, from);
  }

  Result<bool> capturing(int, void*) override { return streams.load().capturing; }

  std::uint64_t stream_id(int, void* stream) override {
    return reinterpret_cast<std::uintptr_t>(stream);
  }

  Result<Mark> record(int device, void*, Mark) override { return Mark{device, this}; }

  Result<bool> completed(Mark& mark) override {
    if (!streams.load().done) return false;
    mark = {};
    return true;
  }

  Result<void*> allocate(int device, std::size_t bytes) override {
    if (Status status = check(device); !status.ok()) return status;
    // Exactly as large as asked for, so that AddressSanitizer sees what is beyond; filled with NaN.
    void* data = nullptr;
    const std::size_t size = bytes > 0 ? bytes : 1;
    if (posix_memalign(&data, 256, size) != 0)
      return Status(StatusCode::out_of_memory,
                    formatted("[cuda] no {} bytes of emulated device memory", bytes));
    std::memset(data, 0xFF, size);
    return data;
  }

  Status free(int device, void* data) override {
    return work(device, [&] { std::free(data); });
  }
  Result<std::size_t> free_bytes(int device) override {
    if (Status status = check(device); !status.ok()) return status;
    return std::numeric_limits<std::size_t>::max();
  }
  Status upload(int device, void* to, const void* from, std::size_t bytes) override {
    return work(device, [&] { copy(to, from, bytes); });
  }
  Status download(int device, void* to, const void* from, std::size_t bytes) override {
    return work(device, [&] { copy(to, from, bytes); });
  }

  Result<void*> own_stream(int device) override {
    if (Status status = check(device); !status.ok()) return status;
    return static_cast<void*>(&properties_);
  }
  Status synchronize(int device, void*) override { return check(device); }

 private:
  static Status check(int device) {
    if (device == 0) return {};
    return {StatusCode::device, formatted("[cuda] device {} of 1", device)};
  }

  /// No bytes may come from and go to null.
  static void copy(void* to, const void* from, std::size_t bytes) {
    std::copy_n(static_cast<const std::byte*>(from), bytes, static_cast<std::byte*>(to));
  }

  template <class Work>
  static Status work(int device, Work what) {
    if (Status status = check(device); !status.ok()) return status;
    what();
    return {};
  }

  const std::string available_;
  /// An sm_80, or what FOVEA_CUDA_ARCH=90 asks for.
  static DeviceProperties describe() {
    const char* text = std::getenv("FOVEA_CUDA_ARCH");
    if (text != nullptr && std::string_view(text) == "90")
      return {"emulated sm_90", 9, 0, 4, shared_limit(std::size_t{227} * 1024)};
    return {"emulated sm_80", 8, 0, 4, shared_limit(std::size_t{163} * 1024)};
  }
  DeviceProperties properties_ = describe();
};

}  // namespace

namespace emulation {
void set_streams(Streams value) { streams = value; }
}  // namespace emulation

Runtime& emulated_runtime() {
  static EmulatedRuntime runtime;
  return runtime;
}

}  // namespace fovea::cuda
