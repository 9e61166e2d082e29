// TuningScratch: memory for a trial of a problem, with values that take an ordinary time to
// compute.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <fovea/status.h>

#include "contract/backend.h"
#include "contract/problem.h"

namespace fovea {

/// The problem on tensors of its own: the caller's shapes, strides and alignments, and lengths as
/// long as they may be. Nothing of the caller's memory is read or written.
class TuningScratch {
 public:
  /// Memory for the tensors and a workspace. Refused (out_of_memory) where it is more than a
  /// quarter of what is free or than 4 GiB.
  static Result<std::unique_ptr<TuningScratch>> make(const Problem& like,
                                                     std::size_t workspace_bytes);
  ~TuningScratch();
  TuningScratch(const TuningScratch&) = delete;
  TuningScratch& operator=(const TuningScratch&) = delete;

  [[nodiscard]] const Problem& problem() const { return problem_; }
  [[nodiscard]] std::byte* workspace() const { return workspace_; }

 private:
  explicit TuningScratch(const Problem& like) : problem_(like) {}

  Problem problem_;
  const DeviceQueue* queue_ = nullptr;
  void* memory_ = nullptr;
  std::byte* workspace_ = nullptr;
};

}  // namespace fovea
