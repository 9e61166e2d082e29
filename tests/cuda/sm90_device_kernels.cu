#include "cuda/device/atomic.h"
#include "cuda/device/barrier.h"
#include "cuda/device/bulk.h"
#include "cuda/device/numbers.h"
#include "cuda/device/thread.h"
#include "cuda/device/wgmma.h"
#include "tests/cuda/sm90_device_kernels.h"

namespace fovea::cuda::FOVEA_WORLD {
namespace {

using Args = Sm90TestArgs;

/// What a planted defect is.
enum class Defect {
  none,
  wrong_phase,     ///< waits for the phase before
  missing_arrive,  ///< nobody announces the bytes
  wrong_bytes,
  missing_fence,  ///< what was written is not fenced
  missing_product_fence,
  early_release,    ///< a stage is given back while products read it
  early_use,        ///< of results, before they are there
  shifted_operand,  ///< a descriptor 16 bytes off
  wrong_panel,      ///< a descriptor's other distance
  other_operand,    ///< one warp issues another product
  too_many_arrivals,
  missing_read_wait,  ///< a store's source is written over
};

constexpr int kBarrierAt = 64 * 1024;

FOVEA_DEVICE Shared<Mbarrier> test_barriers() { return shared_array<Mbarrier>(kBarrierAt, 4); }
FOVEA_DEVICE std::uint32_t test_base() { return shared_array<char>(0, kBarrierAt).address(0); }

// D [64, 128] = A [64, 64] B by one warpgroup, then stored by boxes of 16 rows. kColumns: B [64,
// 128] lies by columns, two panels of 64; else B's transpose [128, 64]. kRegisters: A comes by
// registers.
template <class T, bool kByColumns, bool kRegisters, Defect kDefect>
FOVEA_DEVICE void product(const Args& args) {
  const Shared<Mbarrier> barriers = test_barriers();
  const std::uint32_t a = test_base(), b = a + 8 * 1024, out = b + 16 * 1024;
  if (thread_index() == 0) {
    barrier_init(barriers, 0, 1);
    fence_barrier_init();
  }
  barrier();
  if (thread_index() == 0) {
    const int bytes = 24 * 1024 + (kDefect == Defect::wrong_bytes ? 16 : 0);
    if (kDefect != Defect::missing_arrive) barrier_arrive_expecting(barriers, 0, bytes);
    if (kDefect == Defect::too_many_arrivals) {
      barrier_arrive(barriers, 0);
      barrier_arrive(barriers, 0);
    }
    load_box(a, args.a, barriers, 0, {{0, 0, 0, 0}}, Reuse::once);
    if (kByColumns) {
      load_box(b, args.b, barriers, 0, {{0, 0, 0, 0}}, Reuse::often);
      load_box(b + 8 * 1024, args.b, barriers, 0, {{64, 0, 0, 0}}, Reuse::often);
    } else {
      load_box(b, args.b, barriers, 0, {{0, 0, 0, 0}}, Reuse::often);
    }
  }
  barrier_wait(barriers, 0, kDefect == Defect::wrong_phase ? 1 : 0);
  std::uint32_t words[4][4];
  if (kRegisters)
    for (int i = 0; i < 4; ++i)
      load_matrices(words[i], swizzled(a, warp() * 16 + (lane() & 15), 2 * i + (lane() >> 4)));
  float d[64];
  if (kDefect != Defect::missing_product_fence) products_fence();
  constexpr Lies kLies = kByColumns ? Lies::by_columns : Lies::by_rows;
  FOVEA_UNROLL
  for (int i = 0; i < 4; ++i) {
    const MatrixAt x =
        MatrixAt::by_rows(a + (kDefect == Defect::shifted_operand ? 16 : 0)) + 32 * i;
    MatrixAt y =
        kByColumns
            ? MatrixAt::by_columns(b, kDefect == Defect::wrong_panel ? 4096 : 8192) + 2048 * i
            : MatrixAt::by_rows(b) + 32 * i;
    if (kDefect == Defect::other_operand && warp() == 2) y = y + 32;
    if (kRegisters && i == 0)
      Wgmma<128>::template registers_first<T, kLies>(d, words[i], y);
    else if (kRegisters)
      Wgmma<128>::template registers<T, kLies>(d, words[i], y, true);
    else if (i == 0)
      Wgmma<128>::template shared_first<T, kLies>(d, x, y);
    else
      Wgmma<128>::template shared<T, kLies>(d, x, y, true);
  }
  products_commit();
  if (kDefect == Defect::early_release) {
    barrier();
    if (thread_index() == 0) {
      barrier_arrive_expecting(barriers, 0, 8 * 1024);
      load_box(b, args.a, barriers, 0, {{0, 0, 0, 0}}, Reuse::often);
    }
  }
  if (kDefect != Defect::early_use) products_wait<0>();
  settle(d);
  FOVEA_UNROLL
  for (int i = 0; i < 8; ++i) {
    const int n = 8 * i;
    store_matrices(
        swizzled(out + i / 4 * 8 * 1024, warp() * 16 + (lane() & 15), 2 * (i & 3) + (lane() >> 4)),
        pack<T>(d[n], d[n + 1]), pack<T>(d[n + 2], d[n + 3]), pack<T>(d[n + 4], d[n + 5]),
        pack<T>(d[n + 6], d[n + 7]));
  }
  if (kDefect == Defect::early_use) products_wait<0>();
  if (kDefect == Defect::early_release) barrier_wait(barriers, 0, 1);
  if (kDefect != Defect::missing_fence) fence_async();
  warp_barrier();
  if (lane() == 0) {
    for (int panel = 0; panel < 2; ++panel)
      store_box(args.out, out + panel * 8 * 1024 + warp() * 2048,
                {{64 * panel, 16 * warp(), 0, 0}});
    bulk_commit();
    if (kDefect == Defect::missing_read_wait) {
      store_shared_16(out + warp() * 2048, {});
      fence_async();
    }
    bulk_wait<0>();
  }
}

// A ring of two stages: one thread loads boxes of 8 rows and a weight for each, 64 threads add them
// up. sums [64]: those of columns, from all blocks.
template <Defect kDefect>
FOVEA_DEVICE void ring(const Args& args) {
  const Shared<Mbarrier> barriers = test_barriers();  // full, full, empty, empty
  const std::uint32_t base = test_base();
  const Shared<float> sums = shared_array<float>(4096, 64), weights = shared_array<float>(8192, 16);
  if (thread_index() == 0) {
    for (int n = 0; n < 2; ++n) {
      barrier_init(barriers, n, 1);
      barrier_init(barriers, 2 + n, 2);
    }
    fence_barrier_init();
  }
  barrier();
  if (warp() == 2) {
    if (lane() != 0) return;
    for (int n = 0; n < args.count; ++n) {
      const int stage = n % 2, parity = n / 2 % 2;
      if (kDefect != Defect::early_release) barrier_wait(barriers, 2 + stage, parity ^ 1);
      barrier_arrive_expecting(barriers, stage, 1024 + 32);
      bulk_load(weights, 8 * stage, static_cast<const float*>(args.words) + 8 * n, 8, barriers,
                stage);
      load_box(base + stage * 1024, args.a, barriers, stage, {{0, 8 * n, 0, 0}}, Reuse::once);
    }
    return;
  }
  float sum = 0;
  for (int n = 0; n < args.count; ++n) {
    const int stage = n % 2, parity = n / 2 % 2;
    barrier_wait(barriers, stage, kDefect == Defect::wrong_phase ? 0 : parity);
    for (int row = 0; row < 8; ++row) {
      const Words4 x = load_shared_16(swizzled(base + stage * 1024, row, thread_index() / 8));
      const std::uint32_t word = x.w[thread_index() % 8 / 2];
      const float value = thread_index() % 2 == 0 ? low_half<Bf16>(word) : high_half<Bf16>(word);
      sum = fma(weights[8 * stage + row], value, sum);
    }
    warp_barrier();
    if (lane() == 0) barrier_arrive(barriers, 2 + stage);
  }
  sums[thread_index()] = sum;
  named_barrier_sync(1, 64);
  if (thread_index() >= 16) return;
  const int n = 4 * thread_index();
  add_four_to(static_cast<float*>(args.sums) + n, sums[n], sums[n + 1], sums[n + 2], sums[n + 3]);
}

// Four matrices of one warp, words [32, 4], by columns to shared memory; sums [32, 8]: its rows.
FOVEA_DEVICE void transposed(const Args& args) {
  const std::uint32_t at = test_base() + 16 * lane();
  const Words4 r = load_16(static_cast<const Words4*>(args.words) + lane());
  store_matrices_transposed(at, r.w[0], r.w[1], r.w[2], r.w[3]);
  warp_barrier();
  store_16(static_cast<Words4*>(args.sums) + lane(), load_shared_16(at));
}

// Two warps take turns in writing to one word.
FOVEA_DEVICE void turns(const Args& args) {
  const Shared<int> word = shared_array<int>(0, 1);
  if (thread_index() == 0) word[0] = 0;
  barrier();
  const int me = warp();
  if (me == 1) named_barrier_arrive(1, 64);
  for (int n = 0; n < args.count; ++n) {
    named_barrier_sync(1 + me, 64);
    if (lane() == 0) word[0] = word[0] * 2 + me;
    warp_barrier();
    named_barrier_arrive(2 - me, 64);
  }
  if (me == 0) named_barrier_sync(1, 64);
  if (thread_index() == 0) static_cast<int*>(args.sums)[0] = word[0];
}
[[maybe_unused]] FOVEA_DEVICE void named_barriers_of_two_sizes(const Args&) {
  named_barrier_sync(1, warp() == 0 ? 64 : 96);
}

template <class T, bool kByColumns, bool kRegisters, Defect kDefect = Defect::none>
Entry product_entry(const char* name) {
  return entry_of<Args, 128, 1, product<T, kByColumns, kRegisters, kDefect>>(name);
}

const Entry kEntries[] = {
    product_entry<Bf16, false, false>("rows_bf16"),
    product_entry<F16, false, false>("rows_f16"),
    product_entry<Bf16, true, true>("columns_bf16"),
    product_entry<F16, true, true>("columns_f16"),
    product_entry<Bf16, false, true>("rows_registers_bf16"),
    entry_of<Args, 96, 1, ring<Defect::none>>("ring"),
    entry_of<Args, 64, 1, turns>("turns"),
    entry_of<Args, 32, 1, transposed>("transposed"),
#if !defined(__CUDACC__)  // defects are for the emulation to find
    product_entry<Bf16, false, false, Defect::wrong_phase>("wrong_phase"),
    product_entry<Bf16, false, false, Defect::missing_arrive>("missing_arrive"),
    product_entry<Bf16, false, false, Defect::wrong_bytes>("wrong_bytes"),
    product_entry<Bf16, false, false, Defect::too_many_arrivals>("too_many_arrivals"),
    product_entry<Bf16, false, false, Defect::missing_fence>("missing_fence"),
    product_entry<Bf16, false, false, Defect::missing_product_fence>("missing_product_fence"),
    product_entry<Bf16, false, false, Defect::early_release>("early_release"),
    product_entry<Bf16, false, false, Defect::early_use>("early_use"),
    product_entry<Bf16, false, false, Defect::shifted_operand>("shifted_operand"),
    product_entry<Bf16, true, true, Defect::wrong_panel>("wrong_panel"),
    product_entry<Bf16, false, false, Defect::other_operand>("other_operand"),
    product_entry<Bf16, false, false, Defect::missing_read_wait>("missing_read_wait"),
    entry_of<Args, 96, 1, ring<Defect::early_release>>("ring_without_empty"),
    entry_of<Args, 96, 1, ring<Defect::wrong_phase>>("ring_of_one_phase"),
    entry_of<Args, 96, 1, named_barriers_of_two_sizes>("named_barriers_of_two_sizes"),
#endif
};

}  // namespace

const Entry* sm90_test_kernel(std::string_view name) {
  for (const Entry& entry : kEntries)
    if (name == entry.name) return &entry;
  return nullptr;
}

}  // namespace fovea::cuda::FOVEA_WORLD
