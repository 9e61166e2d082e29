// The CPU as a backend: one device, its description, its thread pool and the merge.
#include "contract/backend.h"

#include "cpu/isa.h"
#include "cpu/merge.h"
#include "cpu/thread_pool.h"

namespace fovea {
namespace {

std::vector<DeviceInfo> cpu_devices() {
  static const DeviceInfo info = {Device{DeviceType::cpu, 0}, cpu::model_name(),
                                  cpu::capabilities(), cpu::default_threads()};
  return {info};
}

}  // namespace

extern const Backend cpu_backend;
const Backend cpu_backend = {DeviceType::cpu, cpu_devices, cpu::default_threads, cpu::shared_pool,
                             cpu::merge};

}  // namespace fovea
