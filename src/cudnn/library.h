// NVIDIA's libcudnn, opened when it is first asked for: FOVEA_CUDNN_LIBRARY, else the soname that
// the loader knows (or that a framework has loaded already).
#pragma once

#include <cstdint>
#include <string>

#include <fovea/status.h>

namespace fovea::cudnn {

/// The oldest version that is used: bands with both anchors, any lengths.
inline constexpr int kOldestVersion = 90600;

struct Library {
  void* handle = nullptr;
  int version = 0;      ///< 91900 is 9.19.0
  std::string name;     ///< "cuDNN 9.19.0"
  std::string trouble;  ///< why it cannot be used, or empty
};

/// Opened once; lives as long as the process.
const Library& library();

/// 8 for sm_86; 0 where there is no such device.
struct Capability {
  int major = 0, minor = 0;
};
Capability capability_of(int device);

/// The calling thread's device for a while. With `beside_captures`, the thread may meanwhile do
/// what would break a graph capture that is under way elsewhere.
class OnDevice {
 public:
  explicit OnDevice(int device, bool beside_captures);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  Status status_;
  int before_ = 0, mode_ = 0;
  bool changed_ = false, exchanged_ = false;
};

}  // namespace fovea::cudnn
