// Tape autograd: operators are free functions that compute a value and record how its gradient
// flows back (ops.h, attention.h).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lm/tensor.h"

namespace fovea::lm {

/// Where the gradient of one value gathers.
struct GradSlot {
  Tensor grad;                       ///< undefined until something flows in
  std::function<Tensor()> allocate;  ///< makes `grad` elsewhere (a part of a packed gradient)
  Shape shape;
  DType dtype = DType::f32;
};

/// A value of a computation, with the slot of its gradient when it needs one. Copies share both.
class Var {
 public:
  Var() = default;
  /// Without gradient.
  Var(Tensor value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  /// A leaf that gathers a gradient until zero_grad().
  static Var parameter(Tensor value);
  /// A result whose gradient gathers in `slot`.
  Var(Tensor value, std::shared_ptr<GradSlot> slot)
      : value_(std::move(value)), slot_(std::move(slot)) {}

  [[nodiscard]] const Tensor& value() const { return value_; }
  [[nodiscard]] const Shape& shape() const { return value_.shape(); }
  [[nodiscard]] bool requires_grad() const { return slot_ != nullptr; }
  /// Undefined when no gradient has flowed in.
  [[nodiscard]] Tensor grad() const { return slot_ ? slot_->grad : Tensor(); }
  void zero_grad() const {
    if (slot_) slot_->grad = Tensor();
  }
  [[nodiscard]] const std::shared_ptr<GradSlot>& slot() const { return slot_; }

 private:
  Tensor value_;
  std::shared_ptr<GradSlot> slot_;
};

/// Where an operator writes the gradient of one of its inputs.
struct GradTarget {
  Tensor tensor;            ///< in the value's shape and dtype
  bool accumulate = false;  ///< add to what stands there; else the contents are undefined
};

/// The target for an operator that computes into place.
GradTarget grad_target(const std::shared_ptr<GradSlot>& slot);

/// Adds a finished contribution; takes it over, sharing its storage, if it is the first. Throws
/// fovea::Error when its shape or dtype is not that of the slot: a gradient is never converted.
void accumulate_grad(const std::shared_ptr<GradSlot>& slot, const Tensor& contribution);

/// The recorded operators of one forward pass.
class Tape {
 public:
  enum class Mode { record, no_grad };

  explicit Tape(Mode mode = Mode::record) : mode_(mode) {}

  /// Whether an operator with these inputs has to be recorded.
  template <class... Vars>
  [[nodiscard]] bool records(const Vars&... inputs) const {
    return mode_ == Mode::record && (inputs.requires_grad() || ...);
  }

  /// The result of an operator: `value`, whose gradient will be handed to `backward` if one flows
  /// in. Call only when records(inputs...).
  Var record(Tensor value, std::function<void(const Tensor& dout)> backward);
  /// A step for operators with several results; the slots are the operator's own.
  void record_step(std::function<void()> step) { steps_.push_back(std::move(step)); }

  /// Runs the record backwards from a one-element `loss`, whose own gradient is `seed`, and empties
  /// it. What an operator kept for its gradient is freed as soon as it has run.
  void backward(const Var& loss, float seed = 1);

  [[nodiscard]] std::size_t size() const { return steps_.size(); }

 private:
  Mode mode_;
  std::vector<std::function<void()>> steps_;
};

}  // namespace fovea::lm
