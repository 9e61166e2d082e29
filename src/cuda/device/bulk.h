// Copies by the engine of sm_90: boxes of tensors to and from shared memory, and rows of f32 to it.
// One thread issues them.
//
// A load has arrived when the Mbarrier it was given counts its bytes. A store has been read from
// shared memory behind bulk_wait, which waits for groups as copy_wait does; what it reads must have
// been written before a fence_async(). The emulation puts NaN in place of a load when it is issued,
// lets it arrive when nothing else can go on, and lets stores read as late as they may.
#pragma once

#include "cuda/device/barrier.h"
#include "cuda/device/copy.h"
#include "cuda/device/platform.h"
#include "cuda/device/shared.h"
#include "cuda/tensor_map.h"

namespace fovea::cuda::FOVEA_WORLD {

/// Where a box begins, innermost dimension first; may lie beyond the tensor.
struct BoxAt {
  int at[4];
};

/// Whether what is loaded will be read again soon, by other blocks.
enum class Reuse { once, often };

#if defined(__CUDACC__)

FOVEA_DEVICE void load_box(std::uint32_t to, const TensorMap& map, Shared<Mbarrier> barriers, int n,
                           BoxAt from, Reuse reuse) {
  // The policies that createpolicy.fractional makes for evict_first and evict_last.
  const std::uint64_t policy = reuse == Reuse::once ? 0x12F0000000000000ull : 0x14F0000000000000ull;
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map), "r"(barriers.address(n)), "r"(from.at[0]), "r"(from.at[1]), "r"(from.at[2]),
      "r"(from.at[3]), "l"(policy)
      : "memory");
}
FOVEA_DEVICE void store_box(const TensorMap& map, std::uint32_t from, BoxAt to) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          &map),
      "r"(from), "r"(to.at[0]), "r"(to.at[1]), "r"(to.at[2]), "r"(to.at[3])
      : "memory");
}
/// to[first ...] = from[0 ...], count floats, a multiple of 4; both 16-byte aligned.
FOVEA_DEVICE void bulk_load(Shared<float> to, int first, const float* from, int count,
                            Shared<Mbarrier> barriers, int n) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to.address(first)),
      "l"(__cvta_generic_to_global(from)), "r"(count * 4), "r"(barriers.address(n))
      : "memory");
}
FOVEA_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Of all groups but the latest kPending, shared memory has been read.
template <int kPending>
FOVEA_DEVICE void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
/// The map is in the kernel's arguments: fetches it before it is needed.
FOVEA_DEVICE void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Stores four 8 x 8 matrices of 16 bits, r[m] = (g, 2t), (g, 2t + 1) of matrix m: lane 8 m + i
/// says where row i of matrix m goes, a multiple of 16.
FOVEA_DEVICE void store_matrices(std::uint32_t to, std::uint32_t r0, std::uint32_t r1,
                                 std::uint32_t r2, std::uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}
/// The same for their transposes: lane 8 m + i says where column i of matrix m goes.
FOVEA_DEVICE void store_matrices_transposed(std::uint32_t to, std::uint32_t r0, std::uint32_t r1,
                                            std::uint32_t r2, std::uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}
/// Loads them, as MatrixReader does.
FOVEA_DEVICE void load_matrices(std::uint32_t (&r)[4], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
FOVEA_DEVICE Words4 load_shared_16(std::uint32_t from) {
  Words4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.w[0]), "=r"(x.w[1]), "=r"(x.w[2]), "=r"(x.w[3])
               : "r"(from)
               : "memory");
  return x;
}
FOVEA_DEVICE void store_shared_16(std::uint32_t to, Words4 x) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.w[0]), "r"(x.w[1]),
               "r"(x.w[2]), "r"(x.w[3])
               : "memory");
}

#else

FOVEA_DEVICE void load_box(std::uint32_t to, const TensorMap& map, Shared<Mbarrier> barriers, int n,
                           BoxAt from, Reuse) {
  emulation::load_box(to, map, barriers.range(n, 1), from.at);
}
FOVEA_DEVICE void store_box(const TensorMap& map, std::uint32_t from, BoxAt to) {
  emulation::store_box(map, from, to.at);
}
FOVEA_DEVICE void bulk_load(Shared<float> to, int first, const float* from, int count,
                            Shared<Mbarrier> barriers, int n) {
  emulation::bulk_load(to.address(first), from, count, barriers.range(n, 1));
}
FOVEA_DEVICE void bulk_commit() { emulation::bulk_commit(); }
template <int kPending>
void bulk_wait() {
  emulation::bulk_wait(kPending);
}
FOVEA_DEVICE void prefetch_map(const TensorMap&) {}

FOVEA_DEVICE void store_matrices(std::uint32_t to, std::uint32_t r0, std::uint32_t r1,
                                 std::uint32_t r2, std::uint32_t r3) {
  const std::uint32_t r[4] = {r0, r1, r2, r3};
  emulation::store_matrices(to, r, false);
}
FOVEA_DEVICE void store_matrices_transposed(std::uint32_t to, std::uint32_t r0, std::uint32_t r1,
                                            std::uint32_t r2, std::uint32_t r3) {
  const std::uint32_t r[4] = {r0, r1, r2, r3};
  emulation::store_matrices(to, r, true);
}
FOVEA_DEVICE void load_matrices(std::uint32_t (&r)[4], std::uint32_t from) {
  emulation::load_matrices(r, emulation::shared_at(from, 16), false);
}
FOVEA_DEVICE Words4 load_shared_16(std::uint32_t from) {
  return *static_cast<const Words4*>(emulation::shared_at(from, 16));
}
FOVEA_DEVICE void store_shared_16(std::uint32_t to, Words4 x) {
  emulation::store_shared(to, x.w, 16);
}

#endif

/// Where 16 bytes of a swizzled tile lie: `chunk` (0 to 7) of a row of 128 bytes. The tile begins
/// at a multiple of 1024 bytes.
FOVEA_DEVICE std::uint32_t swizzled(std::uint32_t tile, int row, int chunk) {
  return tile + static_cast<std::uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

}  // namespace fovea::cuda::FOVEA_WORLD
