// Independent items, shared out to threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <future>
#include <vector>

#include <fovea/introspect.h>

namespace fovea::cases {

/// As many as the library's kernels use: FOVEA_NUM_THREADS, else the usable cores.
inline int default_threads() {
  for (const DeviceInfo& info : devices())
    if (info.device.type == DeviceType::cpu) return info.threads;
  return 1;
}

/// f(item) for every item below `count`, on as many threads, of which the caller is one. What an
/// item throws is thrown when the others are done.
template <class F>
void each_in_threads(std::size_t count, const F& f, int threads = default_threads()) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t item = next++; item < count; item = next++) f(item);
  };
  std::vector<std::future<void>> others;
  for (int n = 1; n < threads; ++n) others.push_back(std::async(std::launch::async, work));
  work();
  for (std::future<void>& other : others) other.get();
}

}  // namespace fovea::cases
