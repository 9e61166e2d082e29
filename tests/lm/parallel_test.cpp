#include "lm/parallel.h"

#include <atomic>
#include <stdexcept>
#include <thread>

#include "tests/lm/support.h"

namespace fovea::lm {
namespace {

class Parallel : public ::testing::Test {
 protected:
  ~Parallel() override { set_num_threads(0); }
};

TEST_F(Parallel, every_task_runs_once) {
  for (const int threads : {1, 2, 8}) {
    set_num_threads(threads);
    EXPECT_EQ(num_threads(), threads);
    for (const std::int64_t tasks : {0, 1, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
      parallel_tasks(tasks, [&](std::int64_t task) { ++runs[static_cast<std::size_t>(task)]; });
      for (const auto& count : runs) EXPECT_EQ(count, 1);
    }
  }
}

TEST_F(Parallel, ranges_cover_everything) {
  set_num_threads(3);
  std::vector<int> seen(103);
  parallel_ranges(103, 10, [&](std::int64_t begin, std::int64_t end) {
    EXPECT_LE(end - begin, 10);
    for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
  });
  EXPECT_EQ(seen, std::vector<int>(103, 1));
}

TEST_F(Parallel, nested_and_concurrent_loops_finish) {
  set_num_threads(3);
  std::atomic<int> count{0};
  const auto loop = [&] {
    for (int i = 0; i < 50; ++i) {
      parallel_tasks(8, [&](std::int64_t) { parallel_tasks(4, [&](std::int64_t) { ++count; }); });
    }
  };
  std::thread other(loop);
  loop();
  other.join();
  EXPECT_EQ(count, 2 * 50 * 8 * 4);
}

TEST_F(Parallel, first_exception_is_rethrown_and_the_pool_survives) {
  set_num_threads(4);
  const auto failing = [] {
    parallel_tasks(100, [](std::int64_t task) {
      if (task == 13) throw std::runtime_error("task 13");
    });
  };
  EXPECT_THROW(failing(), std::runtime_error);
  std::atomic<int> count{0};
  parallel_tasks(100, [&](std::int64_t) { ++count; });
  EXPECT_EQ(count, 100);
}

TEST_F(Parallel, attention_pool_runs_every_worker) {
  set_num_threads(3);
  const ThreadPool& pool = attention_thread_pool();
  ASSERT_EQ(pool.threads, 3);
  std::vector<std::atomic<int>> runs(3);
  pool.run(
      pool.self,
      [](void* arg, int worker) {
        ++(*static_cast<std::vector<std::atomic<int>>*>(arg))[static_cast<std::size_t>(worker)];
      },
      &runs);
  for (const auto& count : runs) EXPECT_EQ(count, 1);
}

TEST_F(Parallel, bad_counts_are_refused) {
  EXPECT_ERROR_HAS(set_num_threads(-1), "got -1");
  EXPECT_ERROR_HAS(set_num_threads(100000), "got 100000");
}

}  // namespace
}  // namespace fovea::lm
