#include "lm/tape.h"

#include <utility>

#include "lm/error.h"

namespace fovea::lm {
namespace {

std::shared_ptr<GradSlot> make_slot(const Tensor& value) {
  auto slot = std::make_shared<GradSlot>();
  slot->shape = value.shape();
  slot->dtype = value.dtype();
  return slot;
}

}  // namespace

Var Var::parameter(Tensor value) {
  auto slot = make_slot(value);
  return {std::move(value), std::move(slot)};
}

GradTarget grad_target(const std::shared_ptr<GradSlot>& slot) {
  if (slot->grad.defined()) {
    // Another slot may have taken over the same storage: it must not see what is added here.
    if (!slot->allocate && !slot->grad.unique()) slot->grad = slot->grad.clone();
    return {slot->grad, true};
  }
  slot->grad = slot->allocate ? slot->allocate() : Tensor::empty(slot->shape, slot->dtype);
  return {slot->grad, false};
}

void accumulate_grad(const std::shared_ptr<GradSlot>& slot, const Tensor& contribution) {
  if (contribution.dtype() != slot->dtype) {
    fail("[autograd] a gradient must have the dtype of its value; got {} for a value of {}",
         name_of(contribution.dtype()), name_of(slot->dtype));
  }
  if (contribution.shape() != slot->shape) {
    fail("[autograd] a gradient must have the shape of its value; got {} for a value of {}",
         to_string(contribution.shape()), to_string(slot->shape));
  }
  if (!slot->grad.defined() && !slot->allocate) {
    slot->grad = contribution;
    return;
  }
  const GradTarget target = grad_target(slot);
  copy_into(target.tensor, contribution, target.accumulate);
}

Var Tape::record(Tensor value, std::function<void(const Tensor&)> backward) {
  auto slot = make_slot(value);
  steps_.emplace_back([slot, backward = std::move(backward)] {
    if (!slot->grad.defined()) return;
    // The step holds the only reference, so that the operator may pass the tensor on.
    const Tensor dout = std::exchange(slot->grad, Tensor());
    backward(dout);
  });
  return {std::move(value), std::move(slot)};
}

void Tape::backward(const Var& loss, float seed) {
  if (!loss.requires_grad()) {
    fail("[autograd] backward needs a loss that depends on a parameter and was recorded");
  }
  if (loss.value().numel() != 1) {
    fail("[autograd] backward needs a loss of one element; got shape {}", to_string(loss.shape()));
  }
  const Tensor dloss = Tensor::empty(loss.shape());
  *dloss.data() = seed;
  accumulate_grad(loss.slot(), dloss);
  while (!steps_.empty()) {
    const std::function<void()> step = std::move(steps_.back());
    steps_.pop_back();
    step();
  }
}

}  // namespace fovea::lm
