// Fills in what a caller may leave out.
#pragma once

#include <optional>

#include <fovea/attention.h>

#include "core/devices.h"

namespace fovea {

/// Arguments with nothing to fill in.
template <class Args>
class CompleteArgs {
 public:
  explicit CompleteArgs(const Args& args) : args_(args) {}
  const Args& operator*() const { return args_; }
  [[nodiscard]] Status status() const { return {}; }

 private:
  const Args& args_;
};

/// dout may be absent when dlse is given: it is zero then, a view of one zero with stride 0.
/// status(): whether the device had room for the zero.
template <>
class CompleteArgs<BackwardArgs> {
 public:
  explicit CompleteArgs(const BackwardArgs& args) : args_(args) {
    if (args.dout.present() || !args.dlse.present() || args.out.count < 1) return;
    const Result<const void*> zero = zero_on(args.out.segments[0].tensor.device);
    if (!zero.ok()) {
      status_ = zero.status();
      return;
    }
    completed_ = args;
    for (int n = 0; n < args.out.count && n < kMaxSegments; ++n) {
      TensorView zeros = args.out.segments[n].tensor;
      zeros.data = *zero;
      zeros.strides = {};
      completed_->dout.add(zeros);
    }
  }
  const BackwardArgs& operator*() const { return completed_ ? *completed_ : args_; }
  [[nodiscard]] Status status() const { return status_; }

 private:
  const BackwardArgs& args_;
  std::optional<BackwardArgs> completed_;
  Status status_;
};

}  // namespace fovea
