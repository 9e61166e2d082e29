// A place in a ring of stages that warps fill and empty in turn.
#pragma once

#include "cuda/device/platform.h"

namespace fovea::cuda::FOVEA_WORLD {

/// A stage of kCount, and the parity of its turn: whoever waits for a stage to be filled waits with
/// it, whoever waits for it to be free with the other.
template <int kCount>
class RingPlace {
 public:
  FOVEA_DEVICE int stage() const { return word_ >> 1; }
  FOVEA_DEVICE int parity() const { return word_ & 1; }
  FOVEA_DEVICE void advance() {
    word_ += 2;
    if (word_ >= 2 * kCount) word_ = (word_ & 1) ^ 1;
  }
  FOVEA_DEVICE RingPlace before() const {
    RingPlace place;
    place.word_ = word_ >= 2 ? word_ - 2 : (2 * kCount - 2) | (word_ ^ 1);
    return place;
  }

 private:
  int word_ = 0;
};

}  // namespace fovea::cuda::FOVEA_WORLD
