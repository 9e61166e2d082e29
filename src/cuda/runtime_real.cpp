// The CUDA runtime library, linked statically: it starts, and says why, where there is no driver.
#include <algorithm>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <cuda.h>  // types alone: the driver's library is not linked
#include <cuda_runtime_api.h>

#include "contract/format.h"
#include "cuda/runtime.h"

namespace fovea::cuda {
namespace {

// More than this, a kernel must be told of before it is launched.
constexpr std::size_t kPlainSharedBytes = std::size_t{48} * 1024;

/// Ok, or the error by its name. What does not stick is taken off the thread, so that the caller's
/// own checks do not find it.
Status status_of(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();
  return {
      error == cudaErrorMemoryAllocation ? StatusCode::out_of_memory : StatusCode::device,
      formatted("[cuda] {}: {} ({})", what, cudaGetErrorName(error), cudaGetErrorString(error))};
}

/// The calling thread's device, for a while.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    status_ = status_of(cudaGetDevice(&before_), "cudaGetDevice");
    if (!status_.ok() || before_ == device) return;
    status_ = status_of(cudaSetDevice(device), "cudaSetDevice");
    changed_ = status_.ok();
  }
  ~OnDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  Status status_;
  int before_ = 0;
  bool changed_ = false;
};

/// Lets this thread do what would break a graph capture that is under way elsewhere.
class BesideCaptures {
 public:
  BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

std::string version_text(int version) {
  return formatted("{}.{}", version / 1000, version % 1000 / 10);
}

/// Why there is no device, after cudaGetDeviceCount said `error` or counted none.
std::string explain(cudaError_t error) {
  cudaGetLastError();
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    return "no CUDA driver is installed";
  if (error == cudaErrorInsufficientDriver)
    return formatted("the CUDA driver is for {}; this build needs one for {}", version_text(driver),
                     version_text(CUDART_VERSION));
  if (error == cudaSuccess || error == cudaErrorNoDevice) return "the CUDA driver shows no device";
  return formatted("the CUDA driver fails: {} ({})", cudaGetErrorName(error),
                   cudaGetErrorString(error));
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  cudaDeviceGetAttribute(&value, which, device);
  return value;
}

/// The driver's cuTensorMapEncodeTiled; null where it has none.
auto find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                   &found);
#else
  cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
  cudaGetLastError();
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(
      found == cudaDriverEntryPointSuccess ? function : nullptr);
}

DeviceProperties describe(int device) {
  DeviceProperties properties;
  if (cudaDeviceProp all{}; cudaGetDeviceProperties(&all, device) == cudaSuccess)
    properties.name = all.name;
  properties.major = attribute(cudaDevAttrComputeCapabilityMajor, device);
  properties.minor = attribute(cudaDevAttrComputeCapabilityMinor, device);
  properties.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device);
  properties.shared_bytes = shared_limit(
      static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device)));
  return properties;
}

class RealRuntime final : public Runtime {
 public:
  RealRuntime() {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
      unavailable_ = explain(error);
      return;
    }
    for (int device = 0; device < count; ++device) {
      properties_.push_back(describe(device));
      states_.push_back(std::make_unique<DeviceState>());
    }
    cudaGetLastError();
  }

  const std::string& unavailable() override { return unavailable_; }
  std::span<const DeviceProperties> devices() override { return properties_; }
  bool emulated() const override { return false; }
  std::string driver() override {
    int version = 0;
    cudaDriverGetVersion(&version);
    return formatted("driver {}, run time {}", version_text(version), version_text(CUDART_VERSION));
  }

  Status launch(int device, const Entry& entry, LaunchShape shape, const void* args,
                std::size_t args_bytes, void* stream) override {
    Status status = check_launch(properties_, device, entry, shape, args_bytes);
    if (!status.ok() || shape.blocks == 0) return status;
    const OnDevice on(device);
    if (!on.status().ok()) return on.status();
    if (shape.shared_bytes > kPlainSharedBytes) {
      status = allow_shared(state_of(device), entry, shape.shared_bytes);
      if (!status.ok()) return status;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
    config.blockDim = dim3(static_cast<unsigned>(entry.threads));
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = static_cast<cudaStream_t>(stream);
    void* params[] = {const_cast<void*>(args)};
    return status_of(cudaLaunchKernelExC(&config, entry.kernel, params), entry.name);
  }

  Status clear(int device, void* data, std::size_t bytes, void* stream) override {
    return on_device(device, "cudaMemsetAsync", [&] {
      return cudaMemsetAsync(data, 0, bytes, static_cast<cudaStream_t>(stream));
    });
  }

  Status encode(TensorMap& to, const TensorBox& from) override {
    static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) &&
                  alignof(TensorMap) % alignof(CUtensorMap) == 0);
    if (Status status = check_box(from); !status.ok()) return status;
    static const auto encoder = find_encoder();
    if (encoder == nullptr)
      return {StatusCode::device, "[cuda] the driver has no cuTensorMapEncodeTiled"};
    cuuint64_t sizes[4], strides[3];
    cuuint32_t box[4];
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    for (int d = 0; d < 4; ++d) {
      sizes[d] = static_cast<cuuint64_t>(from.sizes[d]);
      box[d] = static_cast<cuuint32_t>(from.box[d]);
      if (d > 0)
        strides[d - 1] = static_cast<cuuint64_t>(from.strides[d] * element_bytes(from.element));
    }
    const CUtensorMapDataType type =
        from.element == TensorElement::bf16  ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
        : from.element == TensorElement::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                             : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    const CUresult result =
        encoder(reinterpret_cast<CUtensorMap*>(&to), type, 4, const_cast<void*>(from.data), sizes,
                strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    // The driver's errors have the runtime's numbers.
    return status_of(static_cast<cudaError_t>(result), "cuTensorMapEncodeTiled");
  }

  Result<bool> capturing(int device, void* stream) override {
    cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
    Status status = on_device(device, "cudaStreamIsCapturing", [&] {
      return cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &state);
    });
    if (!status.ok()) return status;
    return state != cudaStreamCaptureStatusNone;
  }

  std::uint64_t stream_id(int device, void* stream) override {
    unsigned long long id = 0;
    const Status status = on_device(device, "cudaStreamGetId", [&] {
      return cudaStreamGetId(static_cast<cudaStream_t>(stream), &id);
    });
    return status.ok() ? id : reinterpret_cast<std::uintptr_t>(stream);
  }

  Result<Mark> record(int device, void* stream, Mark mark) override {
    const bool fresh = mark.event == nullptr;
    const auto take_and_record = [&] {
      if (fresh)
        if (const cudaError_t error = take(mark.event, state_of(device)); error != cudaSuccess)
          return error;
      return cudaEventRecord(static_cast<cudaEvent_t>(mark.event),
                             static_cast<cudaStream_t>(stream));
    };
    mark.device = device;
    Status status = on_device(device, "cudaEventRecord", take_and_record);
    if (status.ok()) return mark;
    if (fresh && mark.event != nullptr) spend(mark);
    return status;
  }

  Result<bool> completed(Mark& mark) override {
    const BesideCaptures beside;
    const cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(mark.event));
    if (error == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    spend(mark);
    if (error != cudaSuccess) return status_of(error, "cudaEventQuery");
    return true;
  }

  Result<void*> allocate(int device, std::size_t bytes) override {
    const BesideCaptures beside;
    void* data = nullptr;
    Status status = on_device(device, "cudaMalloc",
                              [&] { return cudaMalloc(&data, std::max<std::size_t>(bytes, 1)); });
    if (!status.ok()) return status;
    return data;
  }

  Status free(int device, void* data) override {
    const BesideCaptures beside;
    return on_device(device, "cudaFree", [&] { return cudaFree(data); });
  }

  Result<std::size_t> free_bytes(int device) override {
    std::size_t available = 0, all = 0;
    Status status =
        on_device(device, "cudaMemGetInfo", [&] { return cudaMemGetInfo(&available, &all); });
    if (!status.ok()) return status;
    return available;
  }

  Status upload(int device, void* to, const void* from, std::size_t bytes) override {
    return copy(device, to, from, bytes, cudaMemcpyHostToDevice);
  }
  Status download(int device, void* to, const void* from, std::size_t bytes) override {
    return copy(device, to, from, bytes, cudaMemcpyDeviceToHost);
  }

  Result<void*> own_stream(int device) override {
    const BesideCaptures beside;
    cudaStream_t stream = nullptr;
    Status status = on_device(device, "cudaStreamCreateWithFlags", [&] {
      DeviceState& state = state_of(device);
      const std::lock_guard lock(state.mutex);
      cudaError_t error = cudaSuccess;
      if (state.stream == nullptr)
        error = cudaStreamCreateWithFlags(&state.stream, cudaStreamNonBlocking);
      stream = state.stream;
      return error;
    });
    if (!status.ok()) return status;
    return static_cast<void*>(stream);
  }

  Status synchronize(int device, void* stream) override {
    const BesideCaptures beside;
    return on_device(device, "cudaStreamSynchronize",
                     [&] { return cudaStreamSynchronize(static_cast<cudaStream_t>(stream)); });
  }

 private:
  struct DeviceState {
    std::mutex mutex;
    std::vector<cudaEvent_t> events;  ///< not in use
    std::size_t event_count = 0;      ///< in use or not
    cudaStream_t stream = nullptr;

    std::shared_mutex shared_mutex;
    std::unordered_map<const void*, std::size_t> shared_bytes;  ///< what each kernel may have
  };

  DeviceState& state_of(int device) { return *states_[static_cast<std::size_t>(device)]; }

  template <class Work>
  Status on_device(int device, const char* what, Work work) {
    if (device < 0 || static_cast<std::size_t>(device) >= properties_.size())
      return {StatusCode::device,
              formatted("[cuda] {}: device {} of {}", what, device, properties_.size())};
    const OnDevice on(device);
    return on.status().ok() ? status_of(work(), what) : on.status();
  }

  static Status allow_shared(DeviceState& state, const Entry& entry, std::size_t bytes) {
    {
      const std::shared_lock lock(state.shared_mutex);
      const auto known = state.shared_bytes.find(entry.kernel);
      if (known != state.shared_bytes.end() && known->second >= bytes) return {};
    }
    const std::unique_lock lock(state.shared_mutex);
    std::size_t& allowed = state.shared_bytes[entry.kernel];
    if (allowed >= bytes) return {};
    const BesideCaptures beside;
    Status status =
        status_of(cudaFuncSetAttribute(entry.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(bytes)),
                  entry.name);
    if (status.ok()) allowed = bytes;
    return status;
  }

  static cudaError_t take(void*& event, DeviceState& state) {
    const std::lock_guard lock(state.mutex);
    if (!state.events.empty()) {
      event = state.events.back();
      state.events.pop_back();
      return cudaSuccess;
    }
    const BesideCaptures beside;
    cudaEvent_t made = nullptr;
    const cudaError_t error = cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
    // Room for all events there are, so that giving one back does not allocate.
    if (error == cudaSuccess) state.events.reserve(++state.event_count);
    event = made;
    return error;
  }

  void spend(Mark& mark) {
    DeviceState& state = state_of(mark.device);
    const std::lock_guard lock(state.mutex);
    state.events.push_back(static_cast<cudaEvent_t>(mark.event));
    mark = {};
  }

  Status copy(int device, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    Result<void*> stream = own_stream(device);
    if (!stream.ok()) return stream.status();
    const BesideCaptures beside;
    Status status = on_device(device, "cudaMemcpyAsync", [&] {
      return cudaMemcpyAsync(to, from, bytes, kind, static_cast<cudaStream_t>(*stream));
    });
    return status.ok() ? synchronize(device, *stream) : status;
  }

  std::string unavailable_;
  std::vector<DeviceProperties> properties_;
  std::vector<std::unique_ptr<DeviceState>> states_;
};

}  // namespace

Runtime& real_runtime() {
  // Never destroyed: the driver may be gone before static objects are.
  static RealRuntime& runtime = *new RealRuntime;
  return runtime;
}

}  // namespace fovea::cuda
