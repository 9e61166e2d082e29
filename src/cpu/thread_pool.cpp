#include "cpu/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>

#include <pthread.h>
#include <sched.h>

namespace fovea::cpu {
namespace {

constexpr int kMaxThreads = 1024;

int cores_of_affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// Whole cores that "quota period" allows; no limit where the text says so.
int cores_of_quota(double quota, double period) {
  if (quota <= 0 || period <= 0) return kMaxThreads;
  return std::clamp(static_cast<int>(quota / period), 1, kMaxThreads);
}

/// The tightest quota of the control groups that this process is in.
int cores_of_cgroup() {
  int cores = kMaxThreads;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // <id>:<controllers>:<path>; version 2 has no controllers.
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version2 = controllers.empty();
    if (!version2 && controllers.find("cpu") == std::string::npos) continue;
    std::string path = line.substr(second + 1);
    for (;;) {
      double quota = -1, period = 100000;
      if (version2) {
        std::ifstream file("/sys/fs/cgroup" + path + "/cpu.max");
        std::string text;
        if (file >> text && text != "max") {
          quota = std::strtod(text.c_str(), nullptr);
          file >> period;
        }
      } else {
        std::ifstream("/sys/fs/cgroup/cpu" + path + "/cpu.cfs_quota_us") >> quota;
        std::ifstream("/sys/fs/cgroup/cpu" + path + "/cpu.cfs_period_us") >> period;
      }
      cores = std::min(cores, cores_of_quota(quota, period));
      const auto slash = path.rfind('/');
      if (path.empty() || slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  return cores;
}

int read_default_threads() {
  if (const char* text = std::getenv("FOVEA_NUM_THREADS"); text != nullptr && *text != '\0') {
    char* end = nullptr;
    errno = 0;
    const long threads = std::strtol(text, &end, 10);
    if (errno == 0 && *end == '\0' && threads >= 1)
      return static_cast<int>(std::min<long>(threads, kMaxThreads));
  }
  return std::min(cores_of_affinity(), cores_of_cgroup());
}

/// Threads that sleep until there is a job, and share its workers with the caller.
class Pool {
 public:
  using Task = void (*)(void* arg, int worker);

  void run(int workers, Task task, void* arg) {
    if (workers <= 1 || busy_.exchange(true, std::memory_order_acquire)) {
      for (int worker = 0; worker < workers; ++worker) task(arg, worker);
      return;
    }
    const int helpers = start_threads(workers - 1);
    {
      const std::lock_guard lock(mutex_);
      task_ = task;
      arg_ = arg;
      helpers_ = helpers;
      working_ = helpers;
      job_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    task(arg, 0);
    for (int worker = helpers + 1; worker < workers; ++worker) task(arg, worker);
    wait_for_helpers();
    busy_.store(false, std::memory_order_release);
  }

 private:
  /// Looks this many times before it sleeps: some 10 microseconds, about what waking up costs.
  static constexpr int kSpins = 300;
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  /// Makes sure of `count` threads, or as many as the system grants.
  int start_threads(int count) {
    while (threads_ < count) {
      try {
        std::thread(&Pool::help, this, threads_, job_.load(std::memory_order_relaxed)).detach();
      } catch (const std::system_error&) {
        break;
      }
      ++threads_;
    }
    return std::min(threads_, count);
  }

  void help(int index, std::uint64_t seen) {
    for (;;) {
      for (int spin = 0; spin < kSpins && job_.load(std::memory_order_acquire) == seen; ++spin)
        pause();
      Task task = nullptr;
      void* arg = nullptr;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return job_.load(std::memory_order_relaxed) != seen; });
        seen = job_.load(std::memory_order_relaxed);
        if (index >= helpers_) continue;
        task = task_;
        arg = arg_;
      }
      task(arg, index + 1);
      if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        const std::lock_guard lock(mutex_);
        done_.notify_one();
      }
    }
  }

  void wait_for_helpers() {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (working_.load(std::memory_order_acquire) == 0) break;
      pause();
    }
    // The lock is taken in any case: the last helper may still hold it to say that it is done.
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return working_.load(std::memory_order_acquire) == 0; });
  }

  std::atomic<bool> busy_{false};
  int threads_ = 0;  // guarded by busy_
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::atomic<std::uint64_t> job_{0};
  std::atomic<int> working_{0};
  // Guarded by mutex_: the job.
  Task task_ = nullptr;
  void* arg_ = nullptr;
  int helpers_ = 0;
};

// Never destroyed: its threads sleep until the process ends. A forked child has none of them and
// starts with a pool of its own.
std::atomic<Pool*> current_pool{nullptr};
std::mutex pool_mutex;

Pool& pool() {
  if (Pool* found = current_pool.load(std::memory_order_acquire)) return *found;
  const std::lock_guard lock(pool_mutex);
  Pool* found = current_pool.load(std::memory_order_acquire);
  if (found == nullptr) {
    found = new Pool;
    current_pool.store(found, std::memory_order_release);
  }
  return *found;
}

void watch_forks() {
  static const int registered =
      pthread_atfork([] { pool_mutex.lock(); }, [] { pool_mutex.unlock(); },
                     [] {
                       current_pool.store(nullptr, std::memory_order_release);
                       pool_mutex.unlock();
                     });
  static_cast<void>(registered);
}

void run_shared(void* self, void (*task)(void* arg, int worker), void* arg) {
  pool().run(static_cast<const ThreadPool*>(self)->threads, task, arg);
}

}  // namespace

int default_threads() {
  static const int threads = read_default_threads();
  return threads;
}

const ThreadPool& shared_pool(int threads) {
  watch_forks();
  // Views are handed out for good.
  static auto& views = *new std::map<int, ThreadPool>;
  const int count = std::clamp(threads, 1, kMaxThreads);
  const std::lock_guard lock(pool_mutex);
  const auto [entry, added] = views.try_emplace(count);
  ThreadPool& view = entry->second;
  if (added) view = {count, &view, run_shared};
  return view;
}

}  // namespace fovea::cpu
