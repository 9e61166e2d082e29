#include "cli/stop_signals.h"

#include <pthread.h>
#include <unistd.h>

namespace fovea::cli {
namespace {

[[noreturn]] void end_by(int signal) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  for (;;) raise(signal);
}

bool is_ignored(int signal) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

StopSignals::StopSignals() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  if (!is_ignored(SIGHUP)) sigaddset(&signals_, SIGHUP);  // as nohup wants it
  pthread_sigmask(SIG_BLOCK, &signals_, &mask_before_);
  waiter_ = std::thread([this] { wait(); });
}

StopSignals::~StopSignals() {
  pthread_kill(waiter_.native_handle(), SIGTERM);  // wait() knows it by its sender
  waiter_.join();
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

void StopSignals::wait() {
  for (;;) {
    siginfo_t info = {};
    const int signal = sigwaitinfo(&signals_, &info);
    if (signal < 0) continue;
    if (info.si_pid == getpid()) return;
    if (!deferred_ || (noted_ != 0 && signal == SIGINT)) end_by(signal);
    if (noted_ == 0) noted_ = signal;
  }
}

}  // namespace fovea::cli
