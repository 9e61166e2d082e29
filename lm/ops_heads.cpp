// Views of packed projections: split_qkv, merge_heads.
#include "lm/error.h"
#include "lm/ops.h"

namespace fovea::lm {
namespace {

// Part `index` of a packed [batch, seq, 3, heads, head_dim] as [batch, heads, seq, head_dim].
Tensor packed_part(const Tensor& packed, std::int64_t index, std::int64_t heads) {
  const std::int64_t batch = packed.dim(0);
  const std::int64_t seq = packed.dim(1);
  const std::int64_t row = packed.dim(2);
  const std::int64_t width = row / 3;
  const std::int64_t head_dim = width / heads;
  return packed.strided(index * width, {batch, heads, seq, head_dim},
                        {seq * row, head_dim, row, 1});
}

// The gradient of the projection, allocated when the first of its three parts is wanted.
struct PackedGrad {
  Tensor tensor;
  std::array<bool, 3> used{};
};

}  // namespace

std::array<Var, 3> split_qkv(Tape& tape, const Var& qkv, std::int64_t heads) {
  const Tensor& packed = qkv.value();
  if (packed.rank() != 3 || !packed.contiguous() || heads < 1 || packed.dim(2) % (3 * heads) != 0) {
    fail("[split_qkv] [batch, seq, 3 * heads * head_dim] is wanted; got {} with heads={}",
         to_string(qkv.shape()), heads);
  }
  std::array<Var, 3> parts;
  for (std::size_t i = 0; i < 3; ++i) {
    parts[i] = packed_part(packed, static_cast<std::int64_t>(i), heads);
  }
  if (!tape.records(qkv)) return parts;

  auto grad = std::make_shared<PackedGrad>();
  const Shape shape = qkv.shape();
  for (std::size_t i = 0; i < 3; ++i) {
    auto slot = std::make_shared<GradSlot>();
    slot->shape = parts[i].shape();
    slot->allocate = [grad, shape, heads, i] {
      if (!grad->tensor.defined()) grad->tensor = Tensor::empty(shape);
      grad->used[i] = true;
      return packed_part(grad->tensor, static_cast<std::int64_t>(i), heads);
    };
    parts[i] = Var(parts[i].value(), std::move(slot));
  }
  tape.record_step([grad, heads, slot = qkv.slot(),
                    part_slots = std::array{parts[0].slot(), parts[1].slot(), parts[2].slot()}] {
    if (!grad->tensor.defined()) return;
    for (std::size_t i = 0; i < 3; ++i) {
      part_slots[i]->grad = Tensor();
      if (!grad->used[i]) packed_part(grad->tensor, static_cast<std::int64_t>(i), heads).zero();
    }
    accumulate_grad(slot, std::exchange(grad->tensor, Tensor()));
  });
  return parts;
}

Var merge_heads(Tape& tape, const Var& x) {
  const Tensor& in = x.value();
  const bool four = in.rank() == 4;
  const std::int64_t batch = four ? in.dim(0) : 0;
  const std::int64_t heads = four ? in.dim(1) : 0;
  const std::int64_t seq = four ? in.dim(2) : 0;
  const std::int64_t head_dim = four ? in.dim(3) : 0;
  const Shape strides = {seq * heads * head_dim, head_dim, heads * head_dim, 1};
  if (!four || in.strides() != strides) {
    fail(
        "[merge_heads] [batch, heads, seq, head_dim] in the memory order [batch, seq, heads, "
        "head_dim] is wanted; got {} with strides {}",
        to_string(in.shape()), to_string(in.strides()));
  }
  const Shape merged = {batch, seq, heads * head_dim};
  Tensor y = in.strided(0, merged, {seq * heads * head_dim, heads * head_dim, 1});
  if (!tape.records(x)) return y;
  return tape.record(std::move(y), [slot = x.slot(), strides](const Tensor& dout) {
    accumulate_grad(slot, dout.strided(0, slot->shape, strides));
  });
}

}  // namespace fovea::lm
