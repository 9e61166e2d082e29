// A composition root of the test's own: kernels that refuse, fail or compute nonsense on request.
#pragma once

#include <cstdint>

#include "contract/kernel.h"

namespace fovea::test {

/// What the fake kernels do; reset by every test.
struct Behaviour {
  Refusal best_refuses;     ///< supports() of the best kernel
  bool best_fails = false;  ///< its run() reports a device error
  bool best_is_unavailable = false;
  bool best_steps_back = false;
  bool best_throws = false;  ///< supports() throws what is no std::exception
  std::size_t workspace_bytes = 0;
  bool queued_fails = false;       ///< run() of the device's kernel
  bool queued_fails_late = false;  ///< its work, when it happens
  bool queued_is_wrong = false;
  enum class Stray : std::uint8_t { none, input, around } queued_writes = Stray::none;
  const void* seen_workspace = nullptr;
  int runs = 0;
  int best_runs = 0, plain_runs = 0;  ///< of the CPU's kernels
  int best_sleeps_us = 0, plain_sleeps_us = 0;
};

Behaviour& behaviour();

}  // namespace fovea::test
