#include "lm/parallel.h"

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <sched.h>

#include "lm/error.h"

namespace fovea::lm {
namespace {

constexpr int kMaxThreads = 1024;

int default_threads() {
  if (const char* text = std::getenv("FOVEA_NUM_THREADS"); text != nullptr && *text != '\0') {
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (*end != '\0' || value < 1 || value > kMaxThreads) {
      fail("[lm] FOVEA_NUM_THREADS must be 1 to {}; got '{}'", kMaxThreads, text);
    }
    return static_cast<int>(value);
  }
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    return std::clamp(CPU_COUNT(&allowed), 1, kMaxThreads);
  }
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 1024U));
}

thread_local bool inside_task = false;

class Pool {
 public:
  explicit Pool(int threads) {
    workers_.reserve(static_cast<std::size_t>(threads - 1));
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
    view_ = {threads, this, [](void* self, void (*task)(void*, int), void* arg) {
               auto call = [&](std::int64_t worker) { task(arg, static_cast<int>(worker)); };
               static_cast<Pool*>(self)->run(
                   static_cast<Pool*>(self)->view_.threads,
                   [](void* context, std::int64_t worker) {
                     (*static_cast<decltype(call)*>(context))(worker);
                   },
                   &call);
             }};
  }

  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  [[nodiscard]] const ThreadPool& view() const { return view_; }

  void run(std::int64_t tasks, void (*call)(void*, std::int64_t), void* context) {
    std::unique_lock<std::mutex> turn(turn_, std::defer_lock);
    if (tasks <= 1 || workers_.empty() || inside_task || !turn.try_lock()) {
      for (std::int64_t task = 0; task < tasks; ++task) call(context, task);
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      call_ = call;
      context_ = context;
      tasks_ = tasks;
      next_.store(0, std::memory_order_relaxed);
      error_ = nullptr;
      busy_ = static_cast<int>(workers_.size());
      ++generation_;
    }
    wake_.notify_all();
    take_tasks();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  void take_tasks() {
    inside_task = true;
    try {
      for (std::int64_t task = next_.fetch_add(1); task < tasks_; task = next_.fetch_add(1)) {
        call_(context_, task);
      }
    } catch (...) {
      next_.store(tasks_);
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
    inside_task = false;
  }

  void work() {
    std::uint64_t seen = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
        if (stop_) return;
        seen = generation_;
      }
      take_tasks();
      const std::lock_guard lock(mutex_);
      if (--busy_ == 0) done_.notify_one();
    }
  }

  ThreadPool view_;
  std::vector<std::thread> workers_;
  std::mutex turn_;   // held by the caller whose loop the workers serve
  std::mutex mutex_;  // guards what follows, but for next_
  std::condition_variable wake_, done_;
  void (*call_)(void*, std::int64_t) = nullptr;
  void* context_ = nullptr;
  std::int64_t tasks_ = 0;
  std::atomic<std::int64_t> next_{0};
  std::exception_ptr error_;
  std::uint64_t generation_ = 0;
  int busy_ = 0;
  bool stop_ = false;
};

std::unique_ptr<Pool>& pool_slot() {
  static std::unique_ptr<Pool> slot = std::make_unique<Pool>(default_threads());
  return slot;
}

}  // namespace

void set_num_threads(int threads) {
  if (threads < 0 || threads > kMaxThreads) {
    fail("[lm] the number of threads must be 0 (default) to {}; got {}", kMaxThreads, threads);
  }
  const int wanted = threads == 0 ? default_threads() : threads;
  if (wanted != num_threads()) pool_slot() = std::make_unique<Pool>(wanted);
}

int num_threads() { return pool_slot()->view().threads; }

const ThreadPool& attention_thread_pool() { return pool_slot()->view(); }

void detail::run_tasks(std::int64_t tasks, void (*call)(void*, std::int64_t), void* context) {
  pool_slot()->run(tasks, call, context);
}

}  // namespace fovea::lm
