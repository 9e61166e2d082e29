// What cuda.sm80.forward and cuda.sm80.backward do alike before their kernels run: which compute
// mode, which operands are staged, what the mask holds.
#pragma once

#include <optional>

#include "contract/kernel.h"
#include "contract/plain_problem.h"
#include "cuda/finish.h"
#include "cuda/mask_tiles.h"
#include "cuda/runtime.h"
#include "cuda/stage.h"
#include "cuda/workspace.h"

namespace fovea::cuda {

enum class ComputeMode : std::uint8_t { bf16, f16, f32, tf32 };
ComputeMode mode_of(const Problem& problem);

/// Whether scores are more than scale q.k, and whether anything but bands and lengths touches them.
bool is_bent(const Problem& problem);
bool is_masked(const Problem& problem);

/// Device that a problem is on, as the runtime describes it.
const DeviceProperties* properties_of(const Device& device);

/// Whether the device is there and new enough.
Refusal available_sm80(const Device& device);

/// Bytes of a row of an operand, rounded up so that the next begins at a multiple of 16.
std::int64_t padded_width(std::int64_t width);

/// Where the gradients of an operand's norm weights are wanted.
void name_weights(const MutableOperand& gradient, WeightGradient (&to)[plain::kMostSegments]);

/// An operand as the kernels read it: as it lies, or a copy in the workspace.
class Staging {
 public:
  /// `source` becomes what the copy is, where one is needed.
  void add(plain::Source& source, const RowSpace& space, Workspace& workspace);
  Status run(int device, void* stream) const;
  [[nodiscard]] int count() const { return count_; }

 private:
  static constexpr int kMost = 5;
  std::optional<StageArgs> args_[kMost];  ///< not made where not needed: they are large
  int count_ = 0;
};

/// Classes of the mask's tiles, in the workspace; none without a mask.
class MaskLook {
 public:
  MaskLook() = default;
  MaskLook(const plain::Call& call, Workspace& workspace);
  [[nodiscard]] MaskTiles tiles() const;
  Status run(int device, const Launch& on) const;

 private:
  MaskTilesArgs args_{};
};

}  // namespace fovea::cuda
