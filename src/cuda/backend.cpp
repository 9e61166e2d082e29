// CUDA as a backend: its devices, and the runtime as dispatch's queue.
#include "contract/backend.h"

#include "cuda/count_up.h"
#include "cuda/merge.h"
#include "cuda/runtime.h"

namespace fovea {
namespace {

using cuda::runtime;

std::vector<DeviceInfo> cuda_devices() {
  std::vector<DeviceInfo> list;
  if (!runtime().unavailable().empty()) return list;
  for (const cuda::DeviceProperties& p : runtime().devices()) {
    DeviceInfo info;
    info.device = {DeviceType::cuda, static_cast<std::int32_t>(list.size())};
    info.name = p.name;
    info.capabilities = "sm_" + std::to_string(10 * p.major + p.minor) + ", " +
                        std::to_string(p.multiprocessors) + " multiprocessors, " +
                        std::to_string(p.shared_bytes / 1024) + " KB of shared memory a block";
    info.emulated = runtime().emulated();
    list.push_back(std::move(info));
  }
  return list;
}

Status merge(const MergeProblem& problem) {
  return cuda::merge(problem.out.device.index, problem, problem.stream);
}

Result<void*> record(int device, void* stream, void* again) {
  const Result<cuda::Mark> mark = runtime().record(device, stream, {device, again});
  if (!mark.ok()) return mark.status();
  return mark->event;
}

Result<bool> finished(int device, void* mark) {
  cuda::Mark spent{device, mark};
  return runtime().completed(spent);
}

const DeviceQueue kQueue = {
    [](int device, std::size_t bytes) { return runtime().allocate(device, bytes); },
    [](int device, void* data) { static_cast<void>(runtime().free(device, data)); },
    [](int device, void* to, const void* from, std::size_t bytes) {
      return runtime().upload(device, to, from, bytes);
    },
    [](int device, void* to, const void* from, std::size_t bytes) {
      return runtime().download(device, to, from, bytes);
    },
    [](int device, void* stream) { return runtime().synchronize(device, stream); },
    [](int device) { return runtime().own_stream(device); },
    [](int device, void* stream) { return runtime().capturing(device, stream); },
    [](int device, void* stream) { return runtime().stream_id(device, stream); },
    record,
    finished,
    [](int device) { return runtime().free_bytes(device); },
    [] { return runtime().driver(); },
    [](int device, void* stream, std::uint64_t* count) {
      return cuda::count_up(device, count, stream);
    }};

}  // namespace

extern const Backend cuda_backend;
const Backend cuda_backend = {
    DeviceType::cuda, cuda_devices, nullptr, nullptr, merge, [] { return runtime().unavailable(); },
    &kQueue};

}  // namespace fovea
