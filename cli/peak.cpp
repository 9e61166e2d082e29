// The peak loops are compiled for each instruction set from one source: vectors of the compiler,
// and enough accumulators to cover a multiply-add's latency (4 cycles x 2 ports) on any of them.
#include "cli/peak.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <fovea/introspect.h>

namespace fovea::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Keeps the compiler from computing a result in advance or leaving it out.
template <class T>
inline __attribute__((always_inline)) void keep(T& value) {
  asm volatile("" : "+m"(value));
}

constexpr std::int64_t kSteps = 20'000;

/// Operations done by kSteps x kAccumulators multiply-adds of `kWidth` floats.
template <int kWidth, int kAccumulators>
inline __attribute__((always_inline)) double multiply_add() {
  typedef float Vector __attribute__((vector_size(kWidth * sizeof(float))));
  float factor = 0.999F, summand = 1e-3F;
  keep(factor);
  keep(summand);
  const Vector a = Vector{} + factor, b = Vector{} + summand;
  // Different to the compiler, which would otherwise compute one of them only.
  Vector x[kAccumulators] = {};
  for (Vector& value : x) asm volatile("" : "+m"(value));
  for (std::int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 16
    for (int n = 0; n < kAccumulators; ++n) x[n] = x[n] * a + b;
  }
  for (Vector& value : x) asm volatile("" : "+m"(value));  // as keep()
  return 2.0 * kWidth * kAccumulators * kSteps;
}

using PeakLoop = double (*)();

double baseline_loop() { return multiply_add<4, 10>(); }
#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) double avx2_loop() { return multiply_add<8, 10>(); }
__attribute__((target("avx512f"))) double avx512_loop() { return multiply_add<16, 16>(); }

/// As multiply_add: each lane adds two products of bf16.
__attribute__((target("avx512f,avx512bf16"))) double avx512bf16_loop() {
  constexpr int kAccumulators = 16;
  float factor = 0.999F;
  keep(factor);
  const auto a = reinterpret_cast<__m512bh>(_mm512_set1_ps(factor));
  __m512 x[kAccumulators] = {};
  for (__m512& value : x) asm volatile("" : "+m"(value));
  for (std::int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 16
    for (int n = 0; n < kAccumulators; ++n) x[n] = _mm512_dpbf16_ps(x[n], a, a);
  }
  for (__m512& value : x) asm volatile("" : "+m"(value));
  return 2.0 * 32 * kAccumulators * kSteps;
}

/// As multiply_add, into four tile registers of 16 x 16 sums of 32 products.
__attribute__((target("amx-tile"))) double amxbf16_loop() {
  constexpr int kAccumulators = 4, kTileRows = 16;
  constexpr std::int64_t kTileSteps = kSteps / 4;
  struct alignas(64) {
    unsigned char palette = 1, first_row = 0, reserved[14] = {};
    unsigned short row_bytes[16] = {};
    unsigned char rows[16] = {};
  } config;
  for (int n = 0; n < 8; ++n) {
    config.row_bytes[n] = 64;
    config.rows[n] = kTileRows;
  }
  asm volatile("ldtilecfg %0" : : "m"(config));
  for (std::int64_t step = 0; step < kTileSteps; ++step)
    asm volatile(
        "tdpbf16ps %%tmm5, %%tmm4, %%tmm0\n\ttdpbf16ps %%tmm5, %%tmm4, %%tmm1\n\t"
        "tdpbf16ps %%tmm5, %%tmm4, %%tmm2\n\ttdpbf16ps %%tmm5, %%tmm4, %%tmm3" ::);
  asm volatile("tilerelease" ::);
  return 2.0 * 16 * kTileRows * 32 * kAccumulators * kTileSteps;
}
/// Whether the library's own kernels may use tile registers, which a process has to ask for.
bool has_amxbf16() {
  const std::vector<KernelInfo> all = kernels();
  return std::any_of(all.begin(), all.end(), [](const KernelInfo& kernel) {
    return kernel.id == "cpu.amxbf16.forward" && kernel.available;
  });
}
#endif

struct InstructionSet {
  const char* name;
  PeakLoop loop;
  bool (*available)();
};
constexpr InstructionSet kSets[] = {
#if defined(__x86_64__)
    {"avx512", avx512_loop, [] { return __builtin_cpu_supports("avx512f") != 0; }},
    {"avx2", avx2_loop,
     [] { return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0; }},
#endif
    {"baseline", baseline_loop, [] { return true; }},
#if defined(__x86_64__)
    {"avx512bf16", avx512bf16_loop, [] { return __builtin_cpu_supports("avx512bf16") != 0; }},
    {"amxbf16", amxbf16_loop, has_amxbf16},
#endif
};

/// Runs `work(thread)` on all threads at once until the time is over; returns the sum of what the
/// calls returned over the time that the slowest thread took.
template <class Work>
double rate(int threads, double seconds, const Work& work) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<double> amounts(static_cast<std::size_t>(threads));
  std::vector<double> times(amounts.size());
  std::vector<std::thread> workers;
  for (std::size_t n = 0; n < amounts.size(); ++n) {
    workers.emplace_back([&, n] {
      work(n);  // warm up: pages, clock frequency
      ++ready;
      while (!go) std::this_thread::yield();
      const Clock::time_point begin = Clock::now();
      do {
        amounts[n] += work(n);
        times[n] = seconds_since(begin);
      } while (times[n] < seconds);
    });
  }
  while (ready < threads) std::this_thread::yield();
  go = true;
  double total = 0;
  for (std::size_t n = 0; n < workers.size(); ++n) {
    workers[n].join();
    total += amounts[n] / times[n];
  }
  return total;
}

}  // namespace

std::vector<std::string> peak_instruction_sets() {
  std::vector<std::string> names;
  for (const InstructionSet& set : kSets) {
    if (set.available()) names.emplace_back(set.name);
  }
  return names;
}

std::string peak_set_of(const std::string& kernel) {
  const std::vector<std::string> sets = peak_instruction_sets();
  for (const std::string& set : sets)
    if (kernel.rfind("cpu." + set + ".", 0) == 0 && set.find("bf16") != std::string::npos)
      return set;
  return sets.front();
}

double measure_peak(const std::string& instruction_set, int threads, double seconds) {
  for (const InstructionSet& set : kSets) {
    if (instruction_set != set.name) continue;
    return rate(threads, seconds, [&](std::size_t) { return set.loop(); });
  }
  return 0;
}

double measure_read_bandwidth(int threads, double seconds) {
  // Larger than the last-level cache of any machine at hand; touched, so that pages exist.
  constexpr std::size_t kBytes = std::size_t{1} << 29;
  constexpr std::size_t kStride = std::size_t{1} << 20;
  const std::unique_ptr<std::uint64_t[]> memory(new std::uint64_t[kBytes / 8]);
  std::memset(memory.get(), 1, kBytes);
  const std::size_t strides = kBytes / static_cast<std::size_t>(threads) / kStride;
  const std::size_t share = std::max<std::size_t>(strides, 1) * kStride;
  std::vector<std::size_t> positions(static_cast<std::size_t>(threads));
  return rate(threads, seconds, [&](std::size_t thread) {
    std::size_t& at = positions[thread];
    // More threads than strides share them.
    const std::uint64_t* words = memory.get() + (thread * share + at) % kBytes / 8;
    // Several streams, and lines asked for ahead: one stream alone is not the memory's speed.
    constexpr std::size_t kStreams = 4, kLine = 8, kAhead = 16 * kLine;
    constexpr std::size_t kWords = kStride / 8 / kStreams;
    std::uint64_t sums[kLine] = {};
    for (std::size_t n = 0; n < kWords; n += kLine) {
      for (std::size_t stream = 0; stream < kStreams; ++stream) {
        const std::uint64_t* line = words + stream * kWords + n;
        __builtin_prefetch(line + kAhead);
        for (std::size_t lane = 0; lane < kLine; ++lane) sums[lane] += line[lane];
      }
    }
    keep(sums);
    at = (at + kStride) % share;
    return static_cast<double>(kStride);
  });
}

}  // namespace fovea::cli
