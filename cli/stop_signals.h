// Signals that ask for an end: Ctrl-C, SIGTERM, SIGHUP.
#pragma once

#include <atomic>
#include <csignal>
#include <thread>

namespace fovea::cli {

/// Takes the signals in a thread of its own, so that no handler runs on the stack of a thread that
/// computes: that may be a workspace in the heap (oneDNN's generated code moves the stack pointer
/// there). Threads that are to compute must be started while it lives.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Whether the first signal is only noted. Otherwise, and with a second Ctrl-C, a signal ends the
  /// program at once.
  void defer(bool yes) { deferred_ = yes; }
  /// The first signal noted; 0: none.
  [[nodiscard]] int noted() const { return noted_; }

 private:
  void wait();

  sigset_t signals_{}, mask_before_{};
  std::atomic<bool> deferred_{false};
  std::atomic<int> noted_{0};
  std::thread waiter_;
};

}  // namespace fovea::cli
