#include "cpu/thread_pool.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace fovea::cpu {
namespace {

/// Counts the calls of each worker.
struct Tally {
  std::vector<std::atomic<int>> calls;
  explicit Tally(int workers) : calls(static_cast<std::size_t>(workers)) {}
  static void task(void* self, int worker) {
    static_cast<Tally*>(self)->calls[static_cast<std::size_t>(worker)].fetch_add(1);
  }
  void expect_each(int times) const {
    for (const auto& count : calls) EXPECT_EQ(count.load(), times);
  }
};

void run(const ThreadPool& pool, Tally& tally) { pool.run(pool.self, Tally::task, &tally); }

TEST(ThreadPool, calls_each_worker_once) {
  for (const int threads : {1, 2, 3, 8, 33}) {
    const ThreadPool& pool = shared_pool(threads);
    ASSERT_EQ(pool.threads, threads);
    Tally tally(threads);
    for (int n = 0; n < 200; ++n) run(pool, tally);
    tally.expect_each(200);
  }
}

TEST(ThreadPool, the_same_number_gives_the_same_pool) {
  EXPECT_EQ(&shared_pool(2), &shared_pool(2));
  EXPECT_EQ(shared_pool(0).threads, 1);
}

TEST(ThreadPool, serves_several_callers_at_once) {
  constexpr int kCallers = 4, kTimes = 300;
  std::vector<std::thread> callers;
  std::atomic<int> failures{0};
  for (int c = 0; c < kCallers; ++c)
    callers.emplace_back([&failures, c] {
      const int threads = 2 + c;
      for (int n = 0; n < kTimes; ++n) {
        Tally tally(threads);
        run(shared_pool(threads), tally);
        for (const auto& count : tally.calls)
          if (count.load() != 1) failures.fetch_add(1);
      }
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failures.load(), 0);
}

TEST(ThreadPool, a_call_from_within_a_worker_runs_inline) {
  struct Outer {
    Tally inner{6};
    static void task(void* self, int) { run(shared_pool(6), static_cast<Outer*>(self)->inner); }
  } outer;
  const ThreadPool& pool = shared_pool(3);
  pool.run(pool.self, Outer::task, &outer);
  outer.inner.expect_each(3);
}

#if !defined(__SANITIZE_THREAD__)
TEST(ThreadPool, works_in_a_forked_child) {
  Tally before(4);
  run(shared_pool(4), before);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Tally tally(4);
    run(shared_pool(4), tally);
    int right = 0;
    for (const auto& count : tally.calls) right += count.load() == 1 ? 1 : 0;
    _exit(right == 4 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  Tally after(4);
  run(shared_pool(4), after);
  after.expect_each(1);
}
#endif

TEST(ThreadPool, default_number_is_positive) {
  EXPECT_GE(default_threads(), 1);
  EXPECT_EQ(default_threads(), default_threads());
}

}  // namespace
}  // namespace fovea::cpu
