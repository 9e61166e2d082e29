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

}  // namespace fovea::cuda::emulation
