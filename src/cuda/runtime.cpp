// Which runtime is in use, and what the runtimes have in common.
#include "cuda/runtime.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "contract/format.h"

namespace fovea::cuda {
namespace {

/// In place of a runtime that this build does not have.
class AbsentRuntime final : public Runtime {
 public:
  explicit AbsentRuntime(std::string reason) : reason_(std::move(reason)) {}

  const std::string& unavailable() override { return reason_; }
  std::span<const DeviceProperties> devices() override { return {}; }
  bool emulated() const override { return false; }
  std::string driver() override { return {}; }

  Status launch(int, const Entry&, LaunchShape, const void*, std::size_t, void*) override {
    return refuse();
  }
  Status clear(int, void*, std::size_t, void*) override { return refuse(); }
  Status encode(TensorMap&, const TensorBox&) override { return refuse(); }
  Result<bool> capturing(int, void*) override { return refuse(); }
  std::uint64_t stream_id(int, void*) override { return 0; }
  Result<Mark> record(int, void*, Mark) override { return refuse(); }
  Result<bool> completed(Mark&) override { return refuse(); }
  Result<void*> allocate(int, std::size_t) override { return refuse(); }
  Status free(int, void*) override { return refuse(); }
  Result<std::size_t> free_bytes(int) override { return refuse(); }
  Status upload(int, void*, const void*, std::size_t) override { return refuse(); }
  Status download(int, void*, const void*, std::size_t) override { return refuse(); }
  Result<void*> own_stream(int) override { return refuse(); }
  Status synchronize(int, void*) override { return refuse(); }

 private:
  [[nodiscard]] Status refuse() const { return {StatusCode::device, "[cuda] " + reason_}; }
  std::string reason_;
};

bool wants_emulation() {
  const char* text = std::getenv("FOVEA_CUDA_EMULATE");
  return text != nullptr && std::string_view(text) == "1";
}

Runtime& choose() {
  if (wants_emulation()) {
#if FOVEA_CUDA_EMULATED
    return emulated_runtime();
#else
    static AbsentRuntime absent("the emulation is not part of this build (FOVEA_EMULATE_CUDA)");
    return absent;
#endif
  }
#if FOVEA_CUDA_REAL
  return real_runtime();
#else
  static AbsentRuntime absent(
      "CUDA is not part of this build (FOVEA_WITH_CUDA); FOVEA_CUDA_EMULATE=1 emulates a device");
  return absent;
#endif
}

}  // namespace

Runtime& runtime() {
  static Runtime& chosen = choose();
  return chosen;
}

bool emulating() {
  static const bool emulated = runtime().emulated();
  return emulated;
}

Status check_launch(std::span<const DeviceProperties> devices, int device, const Entry& entry,
                    LaunchShape shape, std::size_t args_bytes) {
  const auto refuse = [&](std::string why) {
    return Status(StatusCode::internal, formatted("[{}] {}", entry.name, why));
  };
  if (device < 0 || static_cast<std::size_t>(device) >= devices.size())
    return refuse(formatted("device {} of {}", device, devices.size()));
  if (shape.blocks < 0 || shape.blocks > std::numeric_limits<std::int32_t>::max())
    return refuse(formatted("a launch of {} blocks", shape.blocks));
  const std::size_t limit = devices[static_cast<std::size_t>(device)].shared_bytes;
  if (shape.shared_bytes > limit)
    return refuse(
        formatted("{} bytes of shared memory; the device has {}", shape.shared_bytes, limit));
  if (args_bytes > kMostArgumentBytes)
    return refuse(formatted("{} bytes of arguments; at most {}", args_bytes, kMostArgumentBytes));
  return {};
}

Status check_box(const TensorBox& x) {
  const auto refuse = [](std::string why) {
    return Status(StatusCode::internal, formatted("[cuda] a tensor map of {}", why));
  };
  constexpr std::int64_t kUnit = 16, kMostBytes = std::int64_t{1} << 40, kMostBox = 256;
  const std::int64_t bytes = element_bytes(x.element);
  if (reinterpret_cast<std::uintptr_t>(x.data) % kUnit != 0)
    return refuse("data that does not begin at a multiple of 16 bytes");
  for (int d = 0; d < 4; ++d) {
    if (x.sizes[d] < 1 || x.sizes[d] > std::numeric_limits<std::int32_t>::max())
      return refuse(formatted("{} elements", x.sizes[d]));
    if (x.box[d] < 1 || x.box[d] > kMostBox) return refuse(formatted("boxes of {}", x.box[d]));
    const std::int64_t step = x.strides[d] * bytes;
    if (d > 0 && (step < kUnit || step % kUnit != 0 || step >= kMostBytes))
      return refuse(formatted("elements {} bytes apart", step));
  }
  if (x.strides[0] != 1 || x.box[0] * bytes != 128) return refuse("rows of odd sizes");
  return {};
}

std::size_t shared_limit(std::size_t device_bytes) {
  const char* text = std::getenv("FOVEA_CUDA_SHARED_KB");
  const std::size_t cap = text != nullptr ? std::strtoull(text, nullptr, 10) * 1024 : 0;
  return cap > 0 ? std::min(cap, device_bytes) : device_bytes;
}

}  // namespace fovea::cuda
