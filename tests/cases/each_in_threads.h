// Independent items, shared out to threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace fovea::cases {

/// f(item) for every item below `count`, on as many threads as the machine has.
template <class F>
void each_in_threads(std::size_t count, const F& f) {
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> threads;
  for (unsigned n = std::max(std::thread::hardware_concurrency(), 1u); n > 0; --n) {
    threads.emplace_back([&] {
      for (std::size_t item = next++; item < count; item = next++) f(item);
    });
  }
}

}  // namespace fovea::cases
