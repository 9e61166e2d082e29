// Independent items, shared out to threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace fovea::cases {

inline unsigned threads_of_machine() { return std::max(std::thread::hardware_concurrency(), 1u); }

/// f(item) for every item below `count`, on as many threads, of which the caller is one.
template <class F>
void each_in_threads(std::size_t count, const F& f, unsigned threads = threads_of_machine()) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t item = next++; item < count; item = next++) f(item);
  };
  std::vector<std::jthread> others;
  for (unsigned n = 1; n < threads; ++n) others.emplace_back(work);
  work();
}

}  // namespace fovea::cases
