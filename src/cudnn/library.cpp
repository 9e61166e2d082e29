#include "cudnn/library.h"

#include <cstdlib>
#include <string_view>

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "contract/format.h"

namespace fovea::cudnn {
namespace {

std::string version_text(int version) {
  return formatted("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

/// Why no call may go through this version, or empty.
std::string defect_of(int version) {
  if (version < kOldestVersion || version >= 100000)
    return formatted("is {}; {} or a later 9 is needed", version_text(version),
                     version_text(kOldestVersion));
  if (version == 91000 || version == 91001)
    return formatted("is {}, whose attention is known to be wrong; 9.10.2 is not",
                     version_text(version));
  return {};
}

Library open() {
  Library made;
  // The emulated device's memory is the host's, which cuDNN cannot reach.
  const char* emulate = std::getenv("FOVEA_CUDA_EMULATE");
  if (emulate != nullptr && std::string_view(emulate) == "1") {
    made.trouble = "cuDNN does not run on the emulated device";
    return made;
  }
  const char* given = std::getenv("FOVEA_CUDNN_LIBRARY");
  const std::string path = given != nullptr && *given != '\0' ? given : "libcudnn.so.9";
  made.handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (made.handle == nullptr) {
    const char* why = dlerror();
    made.trouble = formatted("cuDNN cannot be opened: {} (FOVEA_CUDNN_LIBRARY names its file)",
                             why == nullptr ? path.c_str() : why);
    return made;
  }
  using Version = std::size_t (*)();
  const auto version = reinterpret_cast<Version>(dlsym(made.handle, "cudnnGetVersion"));
  if (version == nullptr) {
    made.trouble = path + " is no cuDNN: it lacks cudnnGetVersion";
    return made;
  }
  made.version = static_cast<int>(version());
  made.name = "cuDNN " + version_text(made.version);
  if (const std::string defect = defect_of(made.version); !defect.empty())
    made.trouble = formatted("cuDNN ({}) {}", path, defect);
  return made;
}

}  // namespace

const Library& library() {
  static const Library& opened = *new Library(open());
  return opened;
}

Capability capability_of(int device) {
  Capability c;
  if (cudaDeviceGetAttribute(&c.major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&c.minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
    cudaGetLastError();
    return {};
  }
  return c;
}

OnDevice::OnDevice(int device, bool beside_captures) {
  cudaError_t error = cudaGetDevice(&before_);
  if (error == cudaSuccess && before_ != device) {
    error = cudaSetDevice(device);
    changed_ = error == cudaSuccess;
  }
  if (error != cudaSuccess) {
    cudaGetLastError();
    status_ = {StatusCode::device, formatted("[cudnn] device {}: {} ({})", device,
                                             cudaGetErrorName(error), cudaGetErrorString(error))};
    return;
  }
  if (!beside_captures) return;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  exchanged_ = cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess;
  mode_ = static_cast<int>(mode);
}

OnDevice::~OnDevice() {
  if (exchanged_) {
    auto mode = static_cast<cudaStreamCaptureMode>(mode_);
    cudaThreadExchangeStreamCaptureMode(&mode);
  }
  if (changed_) cudaSetDevice(before_);
}

}  // namespace fovea::cudnn
