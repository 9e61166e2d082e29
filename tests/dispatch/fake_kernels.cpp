#include "fake_kernels.h"

#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/kernel_table.h"
#include "cpu/thread_pool.h"
#include "fake_device.h"

namespace fovea {

extern const Backend cpu_backend;
extern const Kernel cpu_reference_forward, cpu_reference_backward;

namespace test {

Behaviour& behaviour() {
  static Behaviour instance;
  return instance;
}

namespace {

Refusal always(const Device&) { return Refusal::accept(); }
Refusal serves(const Problem&) { return Refusal::accept(); }
std::size_t no_workspace(const Problem&, int) { return 0; }

Refusal best_available(const Device&) {
  return behaviour().best_is_unavailable
             ? Refusal::because(RefusalCode::instruction_set, "a fake instruction")
             : Refusal::accept();
}
Refusal best_supports(const Problem&) {
  if (behaviour().best_throws) throw 7;
  return behaviour().best_refuses;
}
Refusal best_steps_back(const Device&) {
  return behaviour().best_steps_back ? Refusal::because(RefusalCode::other, "slow on this machine")
                                     : Refusal::accept();
}
std::size_t best_workspace(const Problem&, int) { return behaviour().workspace_bytes; }

// The honest kernels borrow the oracle's arithmetic.
Status best_run(const Problem& problem, const Launch& launch) {
  ++behaviour().runs;
  behaviour().seen_workspace = launch.workspace;
  if (behaviour().best_fails) return {StatusCode::device, "[fake] the device caught fire"};
  std::vector<std::byte> scratch(
      cpu_reference_forward.workspace_bytes(problem, launch.pool->threads) + 64);
  Launch inner = launch;
  inner.workspace = reinterpret_cast<std::byte*>(
      (reinterpret_cast<std::uintptr_t>(scratch.data()) + 63) / 64 * 64);
  return cpu_reference_forward.run(problem, inner);
}

void sleep_for_us(int us) {
  if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
}
Status timed_best_run(const Problem& problem, const Launch& launch) {
  ++behaviour().best_runs;
  sleep_for_us(behaviour().best_sleeps_us);
  return best_run(problem, launch);
}
Status timed_plain_run(const Problem& problem, const Launch& launch) {
  ++behaviour().plain_runs;
  sleep_for_us(behaviour().plain_sleeps_us);
  return best_run(problem, launch);
}

Status wrong_run(const Problem& problem, const Launch&) {
  float* out = static_cast<float*>(problem.out.data);
  for (std::int64_t n = 0; n < problem.out.elements(); ++n) out[n] = 0.5f;
  float* lse = static_cast<float*>(problem.lse.data);
  for (std::int64_t n = 0; n < problem.lse.elements(); ++n) lse[n] = 0;
  return {};
}

const Kernel fake_best = {"fake.best.forward",
                          "fake",
                          "flash",
                          Direction::forward,
                          DeviceType::cpu,
                          false,
                          best_available,
                          best_supports,
                          best_workspace,
                          timed_best_run,
                          false,
                          nullptr,
                          nullptr,
                          best_steps_back};
const Kernel fake_wrong = {"fake.wrong.forward", "fake",   "wrong", Direction::forward,
                           DeviceType::cpu,      false,    always,  serves,
                           no_workspace,         wrong_run};
const Kernel fake_plain = {"fake.plain.forward", "fake",         "plain", Direction::forward,
                           DeviceType::cpu,      false,          always,  serves,
                           best_workspace,       timed_plain_run};

// The device's kernels queue the oracle's arithmetic, which finds its tensors in the fake memory.
template <const Kernel& kOracle>
Status queued_run(const Problem& problem, const Launch& launch) {
  ++behaviour().runs;
  behaviour().seen_workspace = launch.workspace;
  if (behaviour().queued_fails) return {StatusCode::device, "[fake] the launch was refused"};
  fake_device().queue(launch.stream, [problem, launch, now = behaviour()]() -> Status {
    if (now.queued_fails_late) return {StatusCode::device, "[fake] an illegal address"};
    if (now.workspace_bytes > 0) std::memset(launch.workspace, 0xFF, now.workspace_bytes);
    if (now.queued_is_wrong && problem.direction == Direction::forward)
      return wrong_run(problem, {});
    if (now.queued_writes == Behaviour::Stray::input)
      *static_cast<std::uint8_t*>(const_cast<void*>(problem.q().data)) = 1;
    if (now.queued_writes == Behaviour::Stray::around)
      static_cast<std::uint8_t*>(problem.out.data)[-1] = 1;
    const ThreadPool pool = ThreadPool::inline_calls();
    std::vector<std::byte> scratch(kOracle.workspace_bytes(problem, 1) + 64);
    Launch inner;
    inner.pool = &pool;
    inner.workspace = reinterpret_cast<std::byte*>(
        (reinterpret_cast<std::uintptr_t>(scratch.data()) + 63) / 64 * 64);
    return kOracle.run(problem, inner);
  });
  return {};
}

template <const Kernel& kOracle>
Refusal queued_supports(const Problem& problem) {
  return kOracle.supports(problem);
}

Refusal device_available(const Device& device) {
  return device.index < fake_device().devices ? Refusal::accept()
                                              : Refusal::because(RefusalCode::other, "no device");
}

const Kernel fake_queued_forward = {"fake.queued.forward",
                                    "fake",
                                    "queued",
                                    Direction::forward,
                                    DeviceType::cuda,
                                    false,
                                    device_available,
                                    queued_supports<cpu_reference_forward>,
                                    best_workspace,
                                    queued_run<cpu_reference_forward>};
const Kernel fake_queued_backward = {"fake.queued.backward",
                                     "fake",
                                     "queued",
                                     Direction::backward,
                                     DeviceType::cuda,
                                     false,
                                     device_available,
                                     queued_supports<cpu_reference_backward>,
                                     best_workspace,
                                     queued_run<cpu_reference_backward>};

constexpr std::array kKernels = {&fake_best,
                                 &fake_wrong,
                                 &fake_plain,
                                 &cpu_reference_forward,
                                 &cpu_reference_backward,
                                 &fake_queued_forward,
                                 &fake_queued_backward};
constexpr std::array kBackends = {&cpu_backend, &fake_backend};

}  // namespace
}  // namespace test

std::span<const Kernel* const> kernel_table() { return test::kKernels; }
std::span<const Backend* const> backend_table() { return test::kBackends; }
std::span<const build::Absent> absent_backend_table() { return build::kAbsentBackends; }

}  // namespace fovea
