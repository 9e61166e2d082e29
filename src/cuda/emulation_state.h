// The emulated device at work: what its parts share.
#pragma once

#include <cstdint>
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

/// A thread of the block.
struct Lane {
  explicit Lane(void (*body)()) : fibre(body) {}
  Fibre fibre;
  std::vector<Copy> copies;  ///< not arrived
  int groups = 0;            ///< committed
};

/// The calling thread.
Lane& self();

}  // namespace fovea::cuda::emulation
