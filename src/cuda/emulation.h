// The emulated device, as device headers and the emulated runtime see it.
//
// A block's threads are fibres of the launching thread. A thread runs until it reaches a barrier,
// an operation of its warp or a wait; who runs next is drawn from a seeded sequence, so that
// threads get ahead of each other as far as the kernel lets them, and a run repeats. Blocks run one
// after the other. What a kernel must not do ends the launch with a Status.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <fovea/status.h>

#include "cuda/launch.h"
#include "cuda/tensor_map.h"

namespace fovea::cuda::emulation {

// For the runtime.

/// Runs all blocks. Launches of several host threads take turns.
Status launch(const Entry& entry, LaunchShape shape, const void* args);

/// Starts the sequence again; otherwise FOVEA_CUDA_SEED (1) is its seed.
void set_seed(std::uint64_t seed);

/// What tests say of the emulated streams: whether they are being captured, and whether what was
/// launched is done (as it is).
struct Streams {
  bool capturing = false;
  bool done = true;
};
void set_streams(Streams streams);

// For device headers.

/// Who runs.
struct Here {
  int thread = 0, threads = 0;
  std::int64_t block = 0, blocks = 0;
};
extern Here here;

/// Ends the launch; the message gets the kernel, block and thread in front.
[[noreturn]] void fail(std::string&& message);
[[noreturn]] void fail_range(int first, int size, int count);
void check_aligned(const void* address, std::size_t alignment, const char* what);

/// An array in dynamic shared memory, checked to lie within what the launch has.
std::byte* shared_bytes(int byte_offset, int count, std::size_t element_bytes);

void barrier(const char* file, int line);
void warp_barrier();
void shuffle(void* result, const void* value, std::size_t bytes, int from_lane);
std::uint32_t ballot(bool value);

/// A look at memory that another thread or block may write: lets others run.
void poll();

void copy_issue(void* to, const void* from, bool valid);
void copy_commit();
void copy_wait(int pending);

void load_matrices(std::uint32_t (&r)[4], const void* row, bool transposed);
void multiply_bf16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);
void multiply_f16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);
void multiply_tf32(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);

// What sm_90 has beyond that. Addresses of shared memory are counted from where the launch's
// begins.

std::uint32_t shared_address(const void* data);
/// `bytes` bytes of shared memory, checked to lie within what the launch has.
void* shared_at(std::uint32_t address, std::size_t bytes);
void store_shared(std::uint32_t to, const void* from, std::size_t bytes);

void mbarrier_init(const void* at, int arrivals);
void mbarrier_arrive(const void* at, int expected_bytes);
void mbarrier_wait(const void* at, int parity, int line);
void named_barrier(int number, int threads, bool waits);
void fence_async();

void load_box(std::uint32_t to, const TensorMap& map, const void* mbarrier, const int (&at)[4]);
void store_box(const TensorMap& map, std::uint32_t from, const int (&at)[4]);
void bulk_load(std::uint32_t to, const float* from, int count, const void* mbarrier);
void bulk_commit();
void bulk_wait(int pending);
void store_matrices(std::uint32_t to, const std::uint32_t (&r)[4], bool transposed);

/// D [64, columns] += A [64, 16] B [16, columns], as one lane has it.
struct AsyncProduct {
  float* d = nullptr;
  const std::uint32_t* a = nullptr;  ///< registers; null: A is in shared memory
  std::uint32_t a_at = 0, b_at = 0;  ///< MatrixAt
  int columns = 0;
  bool is_f16 = false, b_by_columns = false, add = false;
};
void products_fence();
void products_issue(const AsyncProduct& product);
void products_commit();
void products_wait(int pending);

/// What the emulated device makes of a tensor map.
Status encode(TensorMap& to, const TensorBox& from);

}  // namespace fovea::cuda::emulation
