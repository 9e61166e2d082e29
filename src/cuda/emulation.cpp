// The scheduler of the emulated device: blocks, threads, barriers, and what goes wrong with them.
#include "cuda/emulation.h"

#include <bit>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string_view>

#include "contract/format.h"
#include "cuda/emulation_state.h"

namespace fovea::cuda::emulation {

Here here;

namespace {

constexpr int kMostThreads = 1024;
// Swizzles go by the bits of addresses.
constexpr std::size_t kSharedAlignment = 1024;
constexpr std::uint32_t kWholeWarp = 0xFFFFFFFFu;
// A thread that looks this often, while nothing else happens in the block, waits in vain.
constexpr int kMostPolls = 1 << 20;
// Of how many switches one sees a copy arrive.
constexpr std::uint32_t kArrivals = 256;

struct Warp {
  std::uint32_t ready = 0;    ///< lanes that can run
  std::uint32_t alive = 0;    ///< lanes that have not ended
  std::uint32_t arrived = 0;  ///< lanes at `operation`
  const Operation* operation = nullptr;
  void* operands[32] = {};
};

struct BarrierPlace {
  const char* file = nullptr;
  int line = 0;
};

std::string_view name_of_file(std::string_view path) {
  return path.substr(path.find_last_of('/') + 1);
}

/// The first of the bits that are set, from a random place on and around.
int draw_bit(std::uint32_t set) {
  const int turn = static_cast<int>(draw(32));
  return (std::countr_zero(std::rotr(set, turn)) + turn) & 31;
}

class Device {
 public:
  Status launch(const Entry& entry, LaunchShape shape, const void* args);

  void set_seed(std::uint64_t seed) {
    const std::lock_guard lock(mutex_);
    seed_ = seed;
    launches_ = 0;
  }

  std::uint32_t draw(std::uint32_t bound) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<std::uint32_t>(((state_ >> 32) * bound) >> 32);
  }

  Lane& self() { return lanes_[static_cast<std::size_t>(here.thread)]; }

  /// Goes on with another thread, of another warp once in `patience` times.
  void give_way(std::uint32_t patience) {
    // What is on its way arrives seldom while threads can run, and at the latest when none can.
    if (async_pending() > 0 && draw(kArrivals) == 0) async_arrive();
    for (;;) {
      const int next = draw_next(patience);
      if (next >= 0) {
        switch_to(next);
        return;
      }
      if (!async_arrive()) fail_stuck();
    }
  }
  void give_way() { give_way(patience_); }

  void meet(const Operation& operation, void* operand);
  void barrier(const char* file, int line);

  void sleep_on(const void* key) {
    self().asleep = key;
    set_ready(here.thread >> 5, warp_of(here.thread).ready & ~bit_of(here.thread));
    give_way();
  }
  void wake(const void* key) {
    polls_ = 0;
    for (int thread = 0; thread < here.threads; ++thread) {
      Lane& lane = lanes_[static_cast<std::size_t>(thread)];
      if (lane.asleep != key) continue;
      lane.asleep = nullptr;
      set_ready(thread >> 5, warp_of(thread).ready | bit_of(thread));
    }
  }
  Lane& lane_of(int thread) { return lanes_[static_cast<std::size_t>(thread)]; }
  std::byte* shared_base() { return shared_.get(); }
  std::size_t shared_size() const { return shape_.shared_bytes; }

  void poll() {
    if (++polls_ > kMostPolls) fail("waits for a value that no thread or earlier block writes");
    give_way(1);
  }

  std::byte* shared(int byte_offset, int count, std::size_t element_bytes) {
    const std::size_t end =
        static_cast<std::size_t>(byte_offset) + static_cast<std::size_t>(count) * element_bytes;
    if (byte_offset < 0 || count < 0 || end > shape_.shared_bytes)
      fail(formatted("an array of {} x {} bytes at {} does not fit in {} bytes of shared memory",
                     count, element_bytes, byte_offset, shape_.shared_bytes));
    return shared_.get() + byte_offset;
  }

  [[noreturn]] void fail(std::string&& message) {
    error_ =
        formatted("[{}] block {}, thread {}: {}", entry_->name, here.block, here.thread, message);
    // The caller is left where it stands, and what it owns must not be lost with it.
    std::string().swap(message);
    self().fibre.switch_to(host_);
    std::abort();
  }

 private:
  void begin_block(std::int64_t block);
  void run_threads();
  static void run_thread();
  void end_thread();
  int draw_next(std::uint32_t patience);
  void switch_to(int next);
  [[noreturn]] void fail_stuck();
  void release_barrier();

  Warp& warp_of(int thread) { return warps_[thread >> 5]; }
  static std::uint32_t bit_of(int thread) { return 1u << (thread & 31); }
  void set_ready(int warp, std::uint32_t lanes) {
    warps_[warp].ready = lanes;
    ready_warps_ = lanes != 0 ? ready_warps_ | 1u << warp : ready_warps_ & ~(1u << warp);
  }

  std::mutex mutex_;
  std::uint64_t seed_ = seed_of_environment(), launches_ = 0, state_ = 1;

  static std::uint64_t seed_of_environment() {
    const char* text = std::getenv("FOVEA_CUDA_SEED");
    return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
  }

  const Entry* entry_ = nullptr;
  LaunchShape shape_;
  const void* args_ = nullptr;
  std::string error_;

  Fibre host_;
  std::vector<Lane> lanes_;
  Warp warps_[kMostThreads / 32];
  std::uint32_t ready_warps_ = 0;
  std::uint32_t patience_ = 1;  ///< of how many switches one goes to another warp
  int alive_ = 0, at_barrier_ = 0, polls_ = 0;
  BarrierPlace barrier_;

  struct FreeBytes {
    void operator()(std::byte* bytes) const {
      ::operator delete (bytes, std::align_val_t{kSharedAlignment});
    }
  };
  std::unique_ptr<std::byte, FreeBytes> shared_;
  std::size_t shared_capacity_ = 0;
};

Device& device() {
  static Device device;
  return device;
}

Status Device::launch(const Entry& entry, LaunchShape shape, const void* args) {
  const std::lock_guard lock(mutex_);
  entry_ = &entry;
  shape_ = shape;
  args_ = args;
  error_.clear();
  ++launches_;
  try {
    lanes_.reserve(kMostThreads);
    while (lanes_.size() < static_cast<std::size_t>(entry.threads))
      lanes_.emplace_back(&Device::run_thread);
    if (shared_capacity_ < shape.shared_bytes) {
      shared_.reset(static_cast<std::byte*>(
          ::operator new (shape.shared_bytes, std::align_val_t{kSharedAlignment})));
      shared_capacity_ = shape.shared_bytes;
    }
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "[cuda] no memory for an emulated block"};
  }
  here = {0, entry.threads, 0, shape.blocks};
  for (std::int64_t block = 0; block < shape.blocks; ++block) {
    begin_block(block);
    run_threads();
    if (error_.empty()) continue;
    // The threads stand anywhere in the kernel, so their stacks cannot be used again.
    lanes_.clear();
    return {StatusCode::internal, error_};
  }
  return {};
}

void Device::begin_block(std::int64_t block) {
  state_ = (seed_ * 0x9E3779B97F4A7C15u) ^ (launches_ * 0xD1B54A32D192ED03u) ^
           (static_cast<std::uint64_t>(block) * 0x8CB92BA72F3D8DD7u);
  if (state_ == 0) state_ = 1;
  for (int n = 0; n < 8; ++n) draw(1);
  // Between lockstep and one warp that runs until it must wait for the others.
  static constexpr std::uint32_t kPatience[] = {4, 64, 1024, 1u << 20};
  patience_ = kPatience[draw(4)];

  here.block = block;
  alive_ = here.threads;
  at_barrier_ = polls_ = 0;
  ready_warps_ = 0;
  for (int n = 0; n < here.threads / 32; ++n) {
    warps_[n].alive = kWholeWarp;
    warps_[n].arrived = 0;
    set_ready(n, kWholeWarp);
  }
  async_begin_block();
  if (shape_.shared_bytes > 0) std::memset(shared_.get(), 0xFF, shape_.shared_bytes);
}

void Device::run_threads() {
  here.thread = static_cast<int>(draw(static_cast<std::uint32_t>(here.threads)));
  host_.switch_to(self().fibre);
}

/// A thread's fibre: one block after the other.
void Device::run_thread() {
  Device& d = device();
  for (;;) {
    // Nothing may be thrown past a fibre, nor left while it is being handled.
    std::string thrown;
    try {
      d.entry_->emulated(d.args_);
    } catch (const std::exception& exception) {
      thrown = formatted("an exception: {}", exception.what());
    }
    if (!thrown.empty()) d.fail(std::move(thrown));
    d.end_thread();
  }
}

void Device::end_thread() {
  Lane& lane = self();
  // What is still on its way arrives some time.
  for (const Copy& copy : lane.copies) std::memcpy(copy.to, copy.data, sizeof(copy.data));
  lane.copies.clear();
  lane.groups = 0;
  async_end_thread(lane);

  Warp& warp = warp_of(here.thread);
  if (warp.arrived != 0)
    fail(formatted("ends while lanes of its warp wait for it ({})", warp.operation->name));
  warp.alive &= ~bit_of(here.thread);
  set_ready(here.thread >> 5, warp.ready & ~bit_of(here.thread));
  if (--alive_ == 0) {
    lane.fibre.switch_to(host_);
    return;
  }
  if (at_barrier_ == alive_) release_barrier();
  give_way();
}

int Device::draw_next(std::uint32_t patience) {
  if (ready_warps_ == 0) return -1;
  int warp = here.thread >> 5;
  if ((ready_warps_ >> warp & 1u) == 0 || draw(patience) == 0) warp = draw_bit(ready_warps_);
  return warp * 32 + draw_bit(warps_[warp].ready);
}

void Device::switch_to(int next) {
  Lane& from = self();
  if (next == here.thread) return;
  here.thread = next;
  from.fibre.switch_to(self().fibre);
}

void Device::meet(const Operation& operation, void* operand) {
  const int thread = here.thread;
  Warp& warp = warp_of(thread);
  if (warp.alive != kWholeWarp)
    fail(formatted("{} without lanes of the warp that have ended", operation.name));
  if (warp.arrived == 0) {
    warp.operation = &operation;
  } else if (warp.operation != &operation) {
    fail(formatted("is at {} while lanes of its warp are at {}", operation.name,
                   warp.operation->name));
  }
  warp.operands[thread & 31] = operand;
  warp.arrived |= bit_of(thread);
  if (warp.arrived == kWholeWarp) {
    operation.run(warp.operands);
    warp.arrived = 0;
    polls_ = 0;
    set_ready(thread >> 5, kWholeWarp);
  } else {
    set_ready(thread >> 5, warp.ready & ~bit_of(thread));
  }
  give_way();
}

void Device::barrier(const char* file, int line) {
  if (at_barrier_ == 0) {
    barrier_ = {file, line};
  } else if (barrier_.line != line || std::strcmp(barrier_.file, file) != 0) {
    fail(formatted("is at the barrier of {}:{} while others are at that of {}:{}",
                   name_of_file(file), line, name_of_file(barrier_.file), barrier_.line));
  }
  set_ready(here.thread >> 5, warp_of(here.thread).ready & ~bit_of(here.thread));
  if (++at_barrier_ == alive_) release_barrier();
  give_way();
}

void Device::release_barrier() {
  at_barrier_ = polls_ = 0;
  for (int n = 0; n < here.threads / 32; ++n) set_ready(n, warps_[n].alive);
}

void Device::fail_stuck() {
  std::string text = formatted("the block is stuck: {} threads have ended", here.threads - alive_);
  if (at_barrier_ > 0)
    text += formatted(", {} wait at the barrier of {}:{}", at_barrier_, name_of_file(barrier_.file),
                      barrier_.line);
  for (int n = 0; n < here.threads / 32; ++n)
    if (warps_[n].arrived != 0)
      text += formatted(", {} of warp {} wait at {}", std::popcount(warps_[n].arrived), n,
                        warps_[n].operation->name);
  text += async_sleepers(here.threads);
  fail(std::move(text));
}

}  // namespace

Status launch(const Entry& entry, LaunchShape shape, const void* args) {
  return device().launch(entry, shape, args);
}
void set_seed(std::uint64_t seed) { device().set_seed(seed); }

void meet(const Operation& operation, void* operand) { device().meet(operation, operand); }
void give_way() { device().give_way(); }
std::uint32_t draw(std::uint32_t bound) { return device().draw(bound); }
Lane& self() { return device().self(); }
Lane& lane_of(int thread) { return device().lane_of(thread); }
void sleep_on(const void* key) { device().sleep_on(key); }
void wake(const void* key) { device().wake(key); }
std::byte* shared_base() { return device().shared_base(); }
std::size_t shared_size() { return device().shared_size(); }

void fail(std::string&& message) { device().fail(std::move(message)); }

void fail_range(int first, int size, int count) {
  fail(size == 1 ? formatted("index {} of an array of {} in shared memory", first, count)
                 : formatted("elements [{}, {}) of an array of {} in shared memory", first,
                             static_cast<std::int64_t>(first) + size, count));
}

void check_aligned(const void* address, std::size_t alignment, const char* what) {
  const std::size_t beyond = reinterpret_cast<std::uintptr_t>(address) % alignment;
  if (beyond != 0)
    fail(formatted("{} lies {} bytes beyond a multiple of {}", what, beyond, alignment));
}

std::byte* shared_bytes(int byte_offset, int count, std::size_t element_bytes) {
  return device().shared(byte_offset, count, element_bytes);
}

void barrier(const char* file, int line) { device().barrier(file, line); }
void poll() { device().poll(); }

}  // namespace fovea::cuda::emulation
