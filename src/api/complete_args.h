// Fills in what a caller may leave out.
#pragma once

#include <optional>

#include <fovea/attention.h>

namespace fovea {

/// Arguments with nothing to fill in.
template <class Args>
class CompleteArgs {
 public:
  explicit CompleteArgs(const Args& args) : args_(args) {}
  const Args& operator*() const { return args_; }

 private:
  const Args& args_;
};

/// dout may be absent when dlse is given: it is zero then, a view of one zero with stride 0.
template <>
class CompleteArgs<BackwardArgs> {
 public:
  explicit CompleteArgs(const BackwardArgs& args) : args_(args) {
    if (args.dout.present() || !args.dlse.present() || args.out.count < 1) return;
    for (int n = 0; n < args.out.count && n < kMaxSegments; ++n)
      if (args.out.segments[n].tensor.device.type != DeviceType::cpu) return;
    completed_ = args;
    static constexpr double kZero = 0;  // its bytes are zero in every dtype
    for (int n = 0; n < args.out.count && n < kMaxSegments; ++n) {
      TensorView zeros = args.out.segments[n].tensor;
      zeros.data = &kZero;
      zeros.strides = {};
      completed_->dout.add(zeros);
    }
  }
  const BackwardArgs& operator*() const { return completed_ ? *completed_ : args_; }

 private:
  const BackwardArgs& args_;
  std::optional<BackwardArgs> completed_;
};

}  // namespace fovea
