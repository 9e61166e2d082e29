// What runs beside the threads of the emulated sm_90: barriers that count bytes, boxes on their
// way, products of warpgroups. All of it happens as late as the kernel lets it, or, sometimes,
// early.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "contract/format.h"
#include "cuda/emulation_state.h"

namespace fovea::cuda::emulation {
namespace {

// Barriers.

struct BarrierState {
  int arrivals = 0;        ///< of a phase
  int missing = 0;         ///< arrivals until the phase ends
  std::int64_t bytes = 0;  ///< announced and not come
  int phase = 0;
  const void* key = nullptr;
};

struct NamedBarrier {
  int arrived = 0, threads = 0;
};

/// A box or a row on its way to shared memory.
struct Load {
  std::uint32_t to;
  std::uint32_t barrier;
  std::vector<std::byte> data;
};

constexpr int kNamedBarriers = 16;
constexpr std::size_t kChunk = 16;

struct Block {
  std::map<std::uint32_t, BarrierState> barriers;
  NamedBarrier named[kNamedBarriers];
  std::vector<Load> loads;
  std::vector<std::uint16_t>
      writers;  ///< of chunks of shared memory since their last fence; 0: none
  int written = 0;
  /// B of the products that each warpgroup has issued, by which its warps are compared.
  std::vector<std::uint64_t> issued[8];
  std::vector<std::size_t> counts;  ///< of products issued, by warp
};
Block block;

BarrierState& barrier_at(std::uint32_t address) {
  const auto found = block.barriers.find(address);
  if (found == block.barriers.end())
    fail(formatted("the mbarrier at {} was not initialised", address));
  return found->second;
}

void end_phase_if_done(BarrierState& barrier) {
  if (barrier.missing != 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.missing = barrier.arrivals;
  wake(&barrier);
}

// Shared memory.

std::uint32_t swizzle(std::uint32_t address) { return address ^ (address >> 7 & 7u) << 4; }

void mark_written(std::uint32_t address, std::size_t bytes) {
  for (std::size_t n = address / kChunk; n <= (address + bytes - 1) / kChunk; ++n) {
    if (block.writers[n] == 0) ++block.written;
    block.writers[n] = static_cast<std::uint16_t>(here.thread + 1);
    self().written.push_back(static_cast<std::uint32_t>(n));
  }
}
void forget_written(std::size_t chunk) {
  if (block.writers[chunk] == 0) return;
  block.writers[chunk] = 0;
  --block.written;
}

// Boxes.

/// What a TensorMap holds here.
struct Map {
  const std::byte* data;
  std::int64_t strides[3];  ///< of the outer dimensions, in bytes
  std::uint32_t sizes[4];
  std::uint16_t box[4];
  std::uint32_t mark;
  TensorElement element;
};
static_assert(sizeof(Map) <= sizeof(TensorMap));
constexpr std::uint32_t kMark = 0x7E4504A9;

Map read_map(const TensorMap& from) {
  Map map;
  std::memcpy(&map, &from, sizeof(map));
  if (map.mark != kMark) fail("a tensor map that was not encoded");
  return map;
}

int box_bytes(const Map& map) {
  return map.box[0] * map.box[1] * map.box[2] * map.box[3] *
         static_cast<int>(element_bytes(map.element));
}

/// visit(address, bytes of global memory or null) for all elements of a box. `width`: of rows.
template <class Visit>
void for_box(const Map& map, std::uint32_t width, std::uint32_t shared, const int (&at)[4],
             Visit&& visit) {
  const auto size = static_cast<std::uint32_t>(element_bytes(map.element));
  for (int l = 0; l < map.box[3]; ++l)
    for (int k = 0; k < map.box[2]; ++k)
      for (int j = 0; j < map.box[1]; ++j) {
        const std::int64_t outer[3] = {at[1] + std::int64_t{j}, at[2] + std::int64_t{k},
                                       at[3] + std::int64_t{l}};
        bool inside = true;
        std::int64_t offset = 0;
        for (int d = 0; d < 3; ++d) {
          inside = inside && outer[d] >= 0 && outer[d] < map.sizes[d + 1];
          offset += outer[d] * map.strides[d];
        }
        for (int i = 0; i < map.box[0]; ++i, shared += size) {
          const std::int64_t inner = at[0] + std::int64_t{i};
          const bool there = inside && inner >= 0 && inner < width;
          visit(swizzle(shared), there ? map.data + offset + inner * size : nullptr, size);
        }
      }
}

void check_box_place(const Map& map, std::uint32_t address) {
  shared_at(address, static_cast<std::size_t>(box_bytes(map)));
  if (address % 128 != 0)
    fail(formatted("a box in shared memory at {}, which is no multiple of 128", address));
}

void depart(const Departure& departure) {
  const Map map = read_map(departure.map);
  // A row is written to the end of its last 16 bytes.
  const auto unit = static_cast<std::uint32_t>(kChunk / element_bytes(map.element));
  const std::uint32_t width = (map.sizes[0] + unit - 1) / unit * unit;
  for_box(map, width, departure.from, departure.at,
          [&](std::uint32_t address, const std::byte* to, std::uint32_t size) {
            check_fenced(address, size);
            if (to != nullptr)
              std::memcpy(const_cast<std::byte*>(to), shared_base() + address, size);
          });
}

// Products.

constexpr std::uint32_t kAddressMask = 0x3FFF;

/// Address of an operand and the distance of its panels.
std::uint32_t address_of(std::uint32_t low) { return (low & kAddressMask) << 4; }
std::uint32_t panel_of(std::uint32_t low) { return (low >> 16 & kAddressMask) << 4; }

float read_16(std::uint32_t address, bool is_f16) {
  const std::uint32_t at = swizzle(address);
  if (block.written > 0) check_fenced(at, 2);
  std::uint16_t bits;
  std::memcpy(&bits, shared_at(at, sizeof(bits)), sizeof(bits));
  return widen_16(bits, is_f16);
}

/// Element (row, k) of an operand that lies by rows.
float by_rows(std::uint32_t low, std::uint32_t row, std::uint32_t k, bool is_f16) {
  return read_16(address_of(low) + row / 8 * 1024 + row % 8 * 128 + 2 * k, is_f16);
}
/// Element (k, column) of one that lies by columns.
float by_columns(std::uint32_t low, std::uint32_t k, std::uint32_t column, bool is_f16) {
  return read_16(address_of(low) + column / 64 * panel_of(low) + k / 8 * 1024 + k % 8 * 128 +
                     2 * (column % 64),
                 is_f16);
}

struct ProductsOperand {
  Lane* lane;
  AsyncProduct product;
  int pending;
};

Lane& lane_at(void* const* operands, int lane) {
  return *static_cast<const ProductsOperand*>(operands[lane])->lane;
}

/// The n-th product that the lanes of a warp have not computed.
void compute(void* const* operands, std::size_t n, int warp) {
  const AsyncProduct& first = lane_at(operands, 0).products[n].product;
  const auto product_of = [&](int lane) -> const AsyncProduct& {
    return lane_at(operands, lane).products[n].product;
  };
  float a[16 * 16];
  if (first.a != nullptr) {
    for (int lane = 0; lane < 32; ++lane) {
      const std::uint32_t* words = product_of(lane).a;
      for (int w = 0; w < 4; ++w) {
        float* to = a + (lane / 4 + w % 2 * 8) * 16 + lane % 4 * 2 + w / 2 * 8;
        to[0] = widen_16(words[w] & 0xFFFFu, first.is_f16);
        to[1] = widen_16(words[w] >> 16, first.is_f16);
      }
    }
  } else {
    for (std::uint32_t row = 0; row < 16; ++row)
      for (std::uint32_t k = 0; k < 16; ++k)
        a[row * 16 + k] =
            by_rows(first.a_at, static_cast<std::uint32_t>(warp % 4) * 16 + row, k, first.is_f16);
  }
  for (int column = 0; column < first.columns; column += 8) {
    float b[16 * 8], d[16 * 8];
    for (std::uint32_t k = 0; k < 16; ++k)
      for (std::uint32_t j = 0; j < 8; ++j) {
        const auto c = static_cast<std::uint32_t>(column) + j;
        b[k * 8 + j] = first.b_by_columns ? by_columns(first.b_at, k, c, first.is_f16)
                                          : by_rows(first.b_at, c, k, first.is_f16);
      }
    for (int lane = 0; lane < 32; ++lane) {
      const float* x = product_of(lane).d + column / 2;
      float* to = d + lane / 4 * 8 + lane % 4 * 2;
      for (int i = 0; i < 4; ++i) to[i / 2 * 64 + i % 2] = first.add ? x[i] : 0.0f;
    }
    multiply_tile(d, a, b);
    for (int lane = 0; lane < 32; ++lane) {
      float* x = product_of(lane).d + column / 2;
      const float* from = d + lane / 4 * 8 + lane % 4 * 2;
      for (int i = 0; i < 4; ++i) x[i] = from[i / 2 * 64 + i % 2];
    }
  }
}

/// Computes the products of all groups before `groups`.
void compute_before(void* const* operands, int groups) {
  const std::vector<Issued>& first = lane_at(operands, 0).products;
  std::size_t count = 0;
  while (count < first.size() && first[count].group < groups) ++count;
  for (std::size_t n = 0; n < count; ++n) compute(operands, n, here.thread / 32);
  for (int lane = 0; lane < 32; ++lane) {
    auto& products = lane_at(operands, lane).products;
    products.erase(products.begin(), products.begin() + static_cast<std::ptrdiff_t>(count));
  }
}

void run_issue(void* const* operands) {
  const auto& first = *static_cast<const ProductsOperand*>(operands[0]);
  for (int lane = 0; lane < 32; ++lane) {
    const auto& operand = *static_cast<const ProductsOperand*>(operands[lane]);
    if (operand.product.b_at != first.product.b_at || operand.product.a_at != first.product.a_at)
      fail("lanes of a warp issue a product of different operands");
    operand.lane->products.push_back({operand.product, operand.lane->product_groups});
  }
  // The warps of a group issue the same products.
  const auto warp = static_cast<std::size_t>(here.thread) / 32;
  std::vector<std::uint64_t>& issued = block.issued[warp / 4];
  const std::uint64_t what =
      static_cast<std::uint64_t>(first.product.a_at) << 32 | first.product.b_at;
  const std::size_t n = block.counts[warp]++;
  if (n == issued.size())
    issued.push_back(what);
  else if (issued[n] != what)
    fail("issues another product than another warp of its group");
  // Now and then one begins, and ends, at once.
  if (draw(16) == 0) compute_before(operands, lane_at(operands, 0).product_groups + 1);
}

void run_wait(void* const* operands) {
  const auto& first = *static_cast<const ProductsOperand*>(operands[0]);
  compute_before(operands, first.lane->product_groups - first.pending);
}

constexpr Operation kIssue = {"a product of a warpgroup", run_issue};
constexpr Operation kWait = {"a wait for products", run_wait};
constexpr Operation kNothing = {"a fence or commit of products", [](void* const*) {}};

struct StoreOperand {
  std::uint32_t to;
  const std::uint32_t* r;
};
void run_store_transposed(void* const* operands) {
  for (int m = 0; m < 4; ++m)
    for (int row = 0; row < 8; ++row) {
      const std::uint32_t to = static_cast<const StoreOperand*>(operands[8 * m + row])->to;
      auto* halves = static_cast<std::byte*>(shared_at(to, 16));
      for (int column = 0; column < 8; ++column) {
        const auto* from = static_cast<const StoreOperand*>(operands[column * 4 + row / 2]);
        const auto half = static_cast<std::uint16_t>(from->r[m] >> 16 * (row % 2));
        std::memcpy(halves + 2 * column, &half, sizeof(half));
      }
    }
}
void run_store(void* const* operands) {
  for (int m = 0; m < 4; ++m)
    for (int row = 0; row < 8; ++row) {
      const std::uint32_t to = static_cast<const StoreOperand*>(operands[8 * m + row])->to;
      auto* words = static_cast<std::byte*>(shared_at(to, 16));
      for (int t = 0; t < 4; ++t)
        std::memcpy(words + 4 * t, &static_cast<const StoreOperand*>(operands[row * 4 + t])->r[m],
                    4);
    }
}
constexpr Operation kStore = {"a store of matrices", run_store};
constexpr Operation kStoreTransposed = {"a store of transposed matrices", run_store_transposed};

}  // namespace

void async_begin_block() {
  block.barriers.clear();
  for (NamedBarrier& barrier : block.named) barrier = {};
  block.loads.clear();
  block.writers.assign(shared_size() / kChunk + 1, 0);
  block.written = 0;
  for (auto& issued : block.issued) issued.clear();
  block.counts.assign(32, 0);
  for (int thread = 0; thread < here.threads; ++thread) {
    Lane& lane = lane_of(thread);
    lane.departures.clear();
    lane.departure_groups = lane.product_groups = 0;
    lane.products.clear();
    lane.fenced = false;
    lane.written.clear();
    lane.asleep = nullptr;
  }
}

void async_end_thread(Lane& lane) {
  if (!lane.products.empty()) fail("ends without waiting for its products");
  if (!lane.departures.empty()) fail("ends before its stores have read shared memory");
}

std::size_t async_pending() { return block.loads.size(); }

bool async_arrive() {
  if (block.loads.empty()) return false;
  const std::size_t n = draw(static_cast<std::uint32_t>(block.loads.size()));
  const Load load = std::move(block.loads[n]);
  block.loads.erase(block.loads.begin() + static_cast<std::ptrdiff_t>(n));
  std::memcpy(shared_base() + load.to, load.data.data(), load.data.size());
  BarrierState& barrier = barrier_at(load.barrier);
  barrier.bytes -= static_cast<std::int64_t>(load.data.size());
  end_phase_if_done(barrier);
  return true;
}

std::string async_sleepers(int threads) {
  std::map<std::string, int> sleepers;
  for (int thread = 0; thread < threads; ++thread) {
    const Lane& lane = lane_of(thread);
    if (lane.asleep == nullptr) continue;
    std::string what;
    for (const auto& [address, barrier] : block.barriers)
      if (lane.asleep == &barrier)
        what = formatted(
            "line {}: for phase {} of the mbarrier at {}, {} of {} arrivals and {} bytes "
            "missing",
            lane.asleep_line, barrier.phase, address, barrier.missing, barrier.arrivals,
            barrier.bytes);
    for (int n = 0; n < kNamedBarriers; ++n)
      if (lane.asleep == &block.named[n])
        what = formatted("at barrier {}, where {} of {} are", n, block.named[n].arrived,
                         block.named[n].threads);
    ++sleepers[what];
  }
  std::string text;
  for (const auto& [what, count] : sleepers) text += formatted("; {} wait {}", count, what);
  return text;
}

std::uint32_t shared_address(const void* data) {
  return static_cast<std::uint32_t>(static_cast<const std::byte*>(data) - shared_base());
}

void* shared_at(std::uint32_t address, std::size_t bytes) {
  if (address + bytes > shared_size())
    fail(formatted("{} bytes at {} of {} of shared memory", bytes, address, shared_size()));
  return shared_base() + address;
}

void store_shared(std::uint32_t to, const void* from, std::size_t bytes) {
  std::memcpy(shared_at(to, bytes), from, bytes);
  mark_written(to, bytes);
}

void check_fenced(std::uint32_t address, std::size_t bytes) {
  for (std::size_t n = address / kChunk; n <= (address + bytes - 1) / kChunk; ++n)
    if (block.writers[n] != 0)
      fail(formatted(
          "16 bytes at {} of shared memory are read beside what thread {} wrote without a "
          "fence since",
          n * kChunk, block.writers[n] - 1));
}

void fence_async() {
  for (const std::uint32_t chunk : self().written)
    if (block.writers[chunk] == here.thread + 1) forget_written(chunk);
  self().written.clear();
}

void mbarrier_init(const void* at, int arrivals) {
  check_aligned(at, 8, "an mbarrier");
  block.barriers[shared_address(at)] = {arrivals, arrivals, 0, 0, nullptr};
}

void mbarrier_arrive(const void* at, int expected_bytes) {
  BarrierState& barrier = barrier_at(shared_address(at));
  if (barrier.missing == 0)
    fail(formatted("arrives at the mbarrier at {} once more than it counts", shared_address(at)));
  barrier.bytes += expected_bytes;
  --barrier.missing;
  end_phase_if_done(barrier);
  give_way();
}

void mbarrier_wait(const void* at, int parity, int line) {
  BarrierState& barrier = barrier_at(shared_address(at));
  while (barrier.phase % 2 == parity) {
    self().asleep_line = line;
    sleep_on(&barrier);
  }
  give_way();
}

void named_barrier(int number, int threads, bool waits) {
  if (number < 1 || number >= kNamedBarriers) fail(formatted("barrier {} of 1 to 15", number));
  NamedBarrier& barrier = block.named[number];
  if (barrier.arrived == 0)
    barrier.threads = threads;
  else if (barrier.threads != threads)
    fail(formatted("is at barrier {} for {} threads while others are there for {}", number, threads,
                   barrier.threads));
  if (++barrier.arrived == barrier.threads) {
    barrier.arrived = 0;
    wake(&barrier);
    give_way();
  } else if (waits) {
    sleep_on(&barrier);
  } else {
    give_way();
  }
}

namespace {

/// What is read now arrives when it may: until then there is NaN.
void begin_load(Load load) {
  barrier_at(load.barrier);
  const std::size_t bytes = load.data.size();
  for (std::size_t n = load.to / kChunk; n < (load.to + bytes) / kChunk; ++n) forget_written(n);
  std::memset(shared_base() + load.to, 0xFF, bytes);
  block.loads.push_back(std::move(load));
  give_way();
}

}  // namespace

void load_box(std::uint32_t to, const TensorMap& from, const void* mbarrier, const int (&at)[4]) {
  const Map map = read_map(from);
  check_box_place(map, to);
  const auto bytes = static_cast<std::size_t>(box_bytes(map));
  Load load{to, shared_address(mbarrier), std::vector<std::byte>(bytes)};
  for_box(map, map.sizes[0], to, at,
          [&](std::uint32_t address, const std::byte* data, std::uint32_t size) {
            if (data != nullptr) std::memcpy(load.data.data() + (address - to), data, size);
          });
  begin_load(std::move(load));
}

void bulk_load(std::uint32_t to, const float* from, int count, const void* mbarrier) {
  check_aligned(from, 16, "the source of a bulk copy");
  if (to % 16 != 0 || count % 4 != 0) fail("a bulk copy of parts of 16 bytes");
  const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
  shared_at(to, bytes);
  Load load{to, shared_address(mbarrier), std::vector<std::byte>(bytes)};
  std::memcpy(load.data.data(), from, bytes);
  begin_load(std::move(load));
}

void store_box(const TensorMap& map, std::uint32_t from, const int (&at)[4]) {
  check_box_place(read_map(map), from);
  Departure departure{map, from, {at[0], at[1], at[2], at[3]}, self().departure_groups};
  self().departures.push_back(departure);
}

void bulk_commit() { ++self().departure_groups; }

void bulk_wait(int pending) {
  Lane& lane = self();
  std::erase_if(lane.departures, [&](const Departure& departure) {
    if (departure.group >= lane.departure_groups - pending && draw(16) != 0) return false;
    depart(departure);
    return true;
  });
  give_way();
}

void store_matrices(std::uint32_t to, const std::uint32_t (&r)[4], bool transposed) {
  if (to % 16 != 0) fail(formatted("a row of a matrix at {} of shared memory", to));
  StoreOperand operand = {to, r};
  shared_at(to, 16);
  mark_written(to, 16);
  meet(transposed ? kStoreTransposed : kStore, &operand);
}

void products_fence() {
  self().fenced = true;
  meet(kNothing, nullptr);
}

void products_issue(const AsyncProduct& product) {
  if (!self().fenced) fail("issues a product without a fence since its last wait");
  ProductsOperand operand = {&self(), product, 0};
  meet(kIssue, &operand);
}

void products_commit() {
  ++self().product_groups;
  meet(kNothing, nullptr);
}

void products_wait(int pending) {
  ProductsOperand operand = {&self(), {}, pending};
  self().fenced = false;
  meet(kWait, &operand);
}

Status encode(TensorMap& to, const TensorBox& from) {
  if (Status status = check_box(from); !status.ok()) return status;
  Map map{};
  map.data = static_cast<const std::byte*>(from.data);
  for (int d = 0; d < 4; ++d) {
    if (d > 0) map.strides[d - 1] = from.strides[d] * element_bytes(from.element);
    map.sizes[d] = static_cast<std::uint32_t>(from.sizes[d]);
    map.box[d] = static_cast<std::uint16_t>(from.box[d]);
  }
  map.mark = kMark;
  map.element = from.element;
  to = {};
  std::memcpy(&to, &map, sizeof(map));
  return {};
}

}  // namespace fovea::cuda::emulation
