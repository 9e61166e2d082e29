// The emulated device at work: what its parts share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/emulation.h"
#include "cuda/fibre.h"

namespace fovea::cuda::emulation {

/// Something that the lanes of a warp do together: `run` gets what each lane passed.
struct Operation {
  const char* name;
  void (*run)(void* const* operands);
};

/// Waits for the other lanes of the warp; the last to arrive does the work for all.
void meet(const Operation& operation, void* operand);

/// Lets others run; the calling thread may be the next.
void give_way();

/// A number below `bound`, from the launch's sequence.
std::uint32_t draw(std::uint32_t bound);

/// 16 bytes on their way to shared memory.
struct Copy {
  std::byte* to;
  std::byte data[16];
  int group;
};

/// A box on its way from shared memory.
struct Departure {
  TensorMap map;
  std::uint32_t from;
  int at[4];
  int group;
};

/// A product that the lane has issued, and its group.
struct Issued {
  AsyncProduct product;
  int group;
};

/// A thread of the block.
struct Lane {
  explicit Lane(void (*body)()) : fibre(body) {}
  Fibre fibre;
  std::vector<Copy> copies;  ///< not arrived
  int groups = 0;            ///< committed

  std::vector<Departure> departures;  ///< not read yet
  int departure_groups = 0;
  std::vector<Issued> products;  ///< not computed yet
  int product_groups = 0;
  bool fenced = false;                 ///< products may be issued
  std::vector<std::uint32_t> written;  ///< chunks of shared memory, since the last fence_async
  const void* asleep = nullptr;        ///< what it waits for
  int asleep_line = 0, asleep_parity = 0;
};

/// The calling thread.
Lane& self();
/// A thread of the block by its number.
Lane& lane_of(int thread);

/// Waits until woken: the thread does not run before some other one wakes those that sleep on
/// `key`.
void sleep_on(const void* key);
void wake(const void* key);

/// The launch's shared memory.
std::byte* shared_base();
std::size_t shared_size();

// What happens beside the threads (emulation_async.cpp).

void async_begin_block();
/// A thread ends: what is wrong with that, or nothing.
void async_end_thread(Lane& lane);
/// Something that is on its way arrives, if there is something.
bool async_arrive();
/// How many things are on their way.
std::size_t async_pending();
/// What sleeping threads wait for.
std::string async_sleepers(int threads);

/// Whether 16 bytes of shared memory hold what was written without a fence_async() since.
void check_fenced(std::uint32_t address, std::size_t bytes);

/// d [16, 8] += a [16, 16] b [16, 8], as tensor cores add.
void multiply_tile(float (&d)[128], const float (&a)[256], const float (&b)[128]);
float widen_16(std::uint32_t bits, bool is_f16);

}  // namespace fovea::cuda::emulation
