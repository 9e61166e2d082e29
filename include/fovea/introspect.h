// What is there and what would be chosen: devices, kernels, reasons.
#pragma once

#include <string>
#include <vector>

#include <fovea/export.h>
#include <fovea/plan.h>

namespace fovea {

/// "0.1.0"
FOVEA_API const char* version();
/// Path of the library (or executable) that holds this code.
FOVEA_API std::string library_path();

struct DeviceInfo {
  Device device;
  std::string name;          ///< e.g. the CPU's model name
  std::string capabilities;  ///< e.g. "avx2 fma avx512f avx512_bf16"
  int threads = 1;           ///< CPU workers used by default
  bool emulated = false;     ///< computed by the host, to test kernels; its speed says nothing
};

FOVEA_API std::vector<DeviceInfo> devices();

enum class SelfCheck : std::uint8_t { not_run, passed, failed };

struct KernelInfo {
  std::string id;
  std::string backend;  ///< "cpu", "cuda", ...
  std::string family;   ///< "flash", "unfused", "reference", ...
  DeviceType device = DeviceType::cpu;
  std::string direction;       ///< "forward" or "backward"
  int priority = 0;            ///< larger is tried first
  bool explicit_only = false;  ///< never chosen by priority (the reference)
  bool specialist = false;     ///< serves only a class of calls, faster than the kernel behind it
  bool available = false;      ///< can run on this machine
  std::string reason;          ///< why not, when not available
  SelfCheck self_check = SelfCheck::not_run;
  std::string self_check_detail;  ///< instantiations checked, or the measured error of a failure
};

/// Every kernel of this build, best first.
FOVEA_API std::vector<KernelInfo> kernels();

/// A backend that is not part of this build, or that has no device on this machine, and why.
struct AbsentBackend {
  std::string backend;
  std::string reason;
};
FOVEA_API std::vector<AbsentBackend> absent_backends();

/// Whether each kernel would serve the call: `reason` is empty for those that would.
FOVEA_API Result<std::vector<PassedOver>> why_not(const ForwardArgs& args,
                                                  const PlanOptions& options = {});
FOVEA_API Result<std::vector<PassedOver>> why_not(const BackwardArgs& args,
                                                  const PlanOptions& options = {});

/// Which kernels are made for the call, whatever this machine can run and whatever is chosen:
/// `reason` is empty for those that are. Of kernels for the tensors' kind of device alone; CUDA
/// kernels ask the device for its shared memory.
FOVEA_API Result<std::vector<PassedOver>> support_of(const ForwardArgs& args);
FOVEA_API Result<std::vector<PassedOver>> support_of(const BackwardArgs& args);

/// A measured choice that this process knows, made by it or read from where they are kept.
struct TunedChoice {
  std::string call;    ///< the class of calls, with device and build
  std::string kernel;  ///< the choice
  std::vector<TunedKernel> kernels;
};
FOVEA_API std::vector<TunedChoice> tuned_choices();
/// The file that measured choices are kept in; empty where there is no place for one.
FOVEA_API std::string tuned_choices_file();

/// Runs the self-check of every available kernel now, for its common instantiation.
FOVEA_API Status run_self_checks();

/// devices, kernels, absent backends, measured choices, version and library path as one JSON
/// object.
FOVEA_API std::string info_json();

}  // namespace fovea
