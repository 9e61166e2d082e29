#include "contract/float_types.h"
#include "cuda/device/atomic.h"
#include "cuda/device/copy.h"
#include "cuda/device/matrix.h"
#include "cuda/device/numbers.h"
#include "cuda/device/shared.h"
#include "cuda/device/thread.h"
#include "tests/cuda/device_kernels.h"

namespace fovea::cuda::FOVEA_WORLD {
namespace {

using Args = DeviceTestArgs;

// D [16, 8] = A [16, 16] B [16, 8], 16 bits, by one warp.
template <class T>
FOVEA_DEVICE void product(const Args& args) {
  const auto* a = static_cast<const std::uint16_t*>(args.a);
  const auto* b = static_cast<const std::uint16_t*>(args.b);
  auto* out = static_cast<float*>(args.out);
  const int g = lane() / 4, t = lane() % 4;
  const auto word = [](std::uint16_t low, std::uint16_t high) {
    return static_cast<std::uint32_t>(low) | static_cast<std::uint32_t>(high) << 16;
  };
  std::uint32_t x[4], y[2];
  for (int n = 0; n < 4; ++n) {
    const int at = (g + n % 2 * 8) * 16 + 2 * t + n / 2 * 8;
    x[n] = word(a[at], a[at + 1]);
  }
  for (int n = 0; n < 2; ++n) {
    const int row = 2 * t + n * 8;
    y[n] = word(b[row * 8 + g], b[(row + 1) * 8 + g]);
  }
  float d[4];
  for (int n = 0; n < 4; ++n) d[n] = out[(g + n / 2 * 8) * 8 + 2 * t + n % 2];
  multiply<T>(d, x, y);
  for (int n = 0; n < 4; ++n) out[(g + n / 2 * 8) * 8 + 2 * t + n % 2] = d[n];
}

// D [16, 8] = A [16, 8] B [8, 8], tf32.
FOVEA_DEVICE void product_tf32(const Args& args) {
  const auto* a = static_cast<const std::uint32_t*>(args.a);
  const auto* b = static_cast<const std::uint32_t*>(args.b);
  auto* out = static_cast<float*>(args.out);
  const int g = lane() / 4, t = lane() % 4;
  std::uint32_t x[4], y[2];
  for (int n = 0; n < 4; ++n) x[n] = a[(g + n % 2 * 8) * 8 + t + n / 2 * 4];
  for (int n = 0; n < 2; ++n) y[n] = b[(t + n * 4) * 8 + g];
  float d[4];
  for (int n = 0; n < 4; ++n) d[n] = out[(g + n / 2 * 8) * 8 + 2 * t + n % 2];
  multiply_tf32(d, x, y);
  for (int n = 0; n < 4; ++n) out[(g + n / 2 * 8) * 8 + 2 * t + n % 2] = d[n];
}

// a [32, 8] of 16 bits, in rows of 24, is four matrices; out [32, 4] is what each lane gets.
template <bool kTransposed, int kShift>
FOVEA_DEVICE void load(const Args& args) {
  const Shared<Bf16> tile = shared_array<Bf16>(0, 32 * 24);
  const auto* a = static_cast<const std::uint16_t*>(args.a);
  for (int n = lane(); n < 32 * 8; n += 32) tile[n / 8 * 24 + n % 8] = Bf16{a[n]};
  warp_barrier();
  std::uint32_t r[4];
  if (kTransposed) {
    MatrixReader(tile, lane() * 24).load_transposed(r, kShift);
  } else {
    MatrixReader(tile, lane() * 24).load(r, kShift);
  }
  for (int n = 0; n < 4; ++n) static_cast<std::uint32_t*>(args.out)[lane() * 4 + n] = r[n];
}

// out [threads, 8] from each lane's a [threads].
FOVEA_DEVICE void exchange(const Args& args) {
  const float x = static_cast<const float*>(args.a)[thread_index()];
  auto* out = static_cast<float*>(args.out) + thread_index() * 8;
  out[0] = shuffle(x, (lane() * 7 + 3) % 32);
  out[1] = shuffle_xor(x, 5);
  out[2] = static_cast<float>(shuffle(static_cast<double>(x), 31 - lane()));
  out[3] = bits_to_float(ballot(x > 0));
  out[4] = any(x > 0) ? 1.0f : 0.0f;
  out[5] = every(x > 0) ? 1.0f : 0.0f;
  out[6] = static_cast<float>(warp() * 100 + lane());
  out[7] = static_cast<float>(block_threads());
}

// out = a by 16 bytes in two groups, those beyond count zero; what of the second group can be
// seen while it may be on its way is a defect where kPending is too large.
template <int kPending>
FOVEA_DEVICE void copy(const Args& args) {
  const int threads = block_threads(), thread = thread_index();
  const Shared<float> tile = shared_array<float>(0, 2 * 4 * threads);
  for (int group = 0; group < 2; ++group) {
    const int n = group * threads + thread;
    copy_async_16(tile, 4 * n, static_cast<const float*>(args.a) + 4 * n, n < args.count);
    copy_commit();
  }
  copy_wait<1>();
  barrier();
  auto* out = static_cast<float*>(args.out);
  const int other = threads - 1 - thread;
  for (int n = 0; n < 4; ++n) out[4 * other + n] = tile[4 * other + n];
  copy_wait<kPending>();
  barrier();
  const Shared<Words4> rest = tile.from(4 * threads, 4 * threads).template as<Words4>();
  store_16(out + 4 * (threads + other), rest[other]);
}

// out f32 [0], u32 [1], u64 [1]: sums over all threads of all blocks; [4], [5]: turns taken; f32
// [6], [7]: sums again; [8 ...] a turn for each block.
FOVEA_DEVICE void add(const Args& args) {
  auto* out = static_cast<std::uint32_t*>(args.out);
  atomic_add(static_cast<float*>(args.out), 0.5f);
  atomic_add(out + 1, static_cast<std::uint32_t>(thread_index()));
  atomic_add(reinterpret_cast<unsigned long long*>(out + 2), 1ull << 33);
  add_pair_to(static_cast<float*>(args.out) + 6, 0.25f, -2.0f);
  if (thread_index() == 0) {
    while (load_acquire(out + 4) != block_index()) {
    }
    const std::uint32_t turn = out[5];
    out[5] = turn + 1;
    out[8 + block_index()] = turn;
    fence();
    store_release(out + 4, static_cast<std::uint32_t>(block_index()) + 1);
  }
}

// out [threads, 16] from a [threads].
template <class T>
FOVEA_DEVICE void numbers(const Args& args) {
  const float x = static_cast<const float*>(args.a)[thread_index()];
  auto* out = static_cast<std::uint32_t*>(args.out) + thread_index() * 16;
  const std::uint32_t packed = pack<T>(x, -x);
  out[0] = packed;
  out[1] = float_to_bits(low_half<T>(packed));
  out[2] = float_to_bits(high_half<T>(packed));
  out[3] = round_tf32(x);
  out[4] = float_to_bits(exp2(x));
  out[5] = float_to_bits(log2(x));
  out[6] = float_to_bits(tanh(x));
  out[7] = float_to_bits(rsqrt(x));
  out[8] = float_to_bits(fma(x, x, -1.0f));
  const Words4 words = load_16(args.b);
  for (int n = 0; n < 4; ++n) out[9 + n] = words.w[n];
}

// out = a [count], both of `element`, plus 1.
FOVEA_DEVICE void elements(const Args& args) {
  const std::int64_t stride = grid_blocks() * block_threads();
  for (std::int64_t n = block_index() * block_threads() + thread_index(); n < args.count;
       n += stride)
    store_element(args.out, args.element, n, load_element(args.a, args.element, n) + 1.0f);
}

// out [threads] = a reversed, by way of shared memory.
template <bool kBarrier>
FOVEA_DEVICE void reverse(const Args& args) {
  const Shared<float> row = shared_array<float>(0, block_threads());
  row[thread_index()] = static_cast<const float*>(args.a)[thread_index()];
  if (kBarrier) barrier();
  static_cast<float*>(args.out)[thread_index()] = row[block_threads() - 1 - thread_index()];
}

// Each round reads what the round before has written, as tiles of keys do.
template <bool kSecondBarrier>
FOVEA_DEVICE void rounds(const Args& args) {
  const Shared<float> row = shared_array<float>(0, block_threads());
  float sum = 0;
  for (int round = 0; round < 4; ++round) {
    row[thread_index()] = static_cast<float>(round * 1000 + thread_index());
    barrier();
    sum += row[(thread_index() + 32) % block_threads()];
    if (kSecondBarrier) barrier();
  }
  static_cast<float*>(args.out)[thread_index()] = sum;
}

FOVEA_DEVICE void beyond_end(const Args&) {
  const Shared<float> row = shared_array<float>(0, block_threads());
  row[thread_index() + 1] = 0;
}
FOVEA_DEVICE void beyond_launch(const Args&) { shared_array<float>(1024, block_threads()); }

FOVEA_DEVICE void barrier_in_branch(const Args&) {
  if (warp() == 0) {
    barrier();
  } else {
    barrier();
  }
}
FOVEA_DEVICE void barrier_for_some_lanes(const Args&) {
  if (lane() == 3) {
    barrier();
  } else {
    warp_barrier();
  }
}
FOVEA_DEVICE void lanes_that_have_ended(const Args&) {
  if (lane() < 16) return;
  warp_barrier();
}
FOVEA_DEVICE void lanes_at_different_operations(const Args&) {
  if (lane() < 16) {
    ballot(true);
  } else {
    warp_barrier();
  }
}
FOVEA_DEVICE void turn_that_never_comes(const Args& args) {
  while (load_acquire(static_cast<const std::uint32_t*>(args.out)) != 7) {
  }
}
// Warps that end early are no defect.
FOVEA_DEVICE void early_end(const Args& args) {
  if (warp() == 0) return;
  barrier();
  static_cast<float*>(args.out)[thread_index()] = 1;
}

FOVEA_CUDA_ENTRY(product_bf16_entry, Args, 32, 1, product<Bf16>)
FOVEA_CUDA_ENTRY(product_f16_entry, Args, 32, 1, product<F16>)

const Entry kEntries[] = {
    product_bf16_entry,
    product_f16_entry,
    entry_of<Args, 32, 1, product_tf32>("product_tf32"),
    entry_of<Args, 32, 1, load<false, 0>>("load"),
    entry_of<Args, 32, 1, load<true, 0>>("load_transposed"),
    entry_of<Args, 32, 1, load<false, 4>>("load_misaligned"),
    entry_of<Args, 128, 1, exchange>("exchange"),
    entry_of<Args, 128, 2, copy<0>>("copy"),
    entry_of<Args, 128, 2, copy<1>>("copy_too_few"),
    entry_of<Args, 64, 1, add>("add"),
    entry_of<Args, 128, 1, numbers<Bf16>>("numbers_bf16"),
    entry_of<Args, 128, 1, numbers<F16>>("numbers_f16"),
    entry_of<Args, 128, 1, elements>("elements"),
    entry_of<Args, 128, 1, reverse<true>>("reverse"),
    entry_of<Args, 128, 1, reverse<false>>("reverse_without_barrier"),
    entry_of<Args, 128, 1, rounds<true>>("rounds"),
    entry_of<Args, 128, 1, rounds<false>>("rounds_with_one_barrier"),
    entry_of<Args, 128, 1, beyond_end>("beyond_end"),
    entry_of<Args, 128, 1, beyond_launch>("beyond_launch"),
    entry_of<Args, 128, 1, barrier_in_branch>("barrier_in_branch"),
    entry_of<Args, 64, 1, barrier_for_some_lanes>("barrier_for_some_lanes"),
    entry_of<Args, 64, 1, lanes_that_have_ended>("lanes_that_have_ended"),
    entry_of<Args, 64, 1, lanes_at_different_operations>("lanes_at_different_operations"),
    entry_of<Args, 64, 1, turn_that_never_comes>("turn_that_never_comes"),
    entry_of<Args, 128, 1, early_end>("early_end"),
};

}  // namespace

const Entry* device_test_kernel(std::string_view name) {
  for (const Entry& entry : kEntries)
    if (name == entry.name) return &entry;
  return nullptr;
}

}  // namespace fovea::cuda::FOVEA_WORLD
