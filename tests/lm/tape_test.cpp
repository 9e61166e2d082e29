#include "lm/tape.h"

#include "lm/ops.h"
#include "tests/lm/support.h"

namespace fovea::lm {
namespace {

Tensor filled(const Shape& shape, float value) {
  Tensor t = Tensor::empty(shape);
  for (float& x : t.values()) x = value;
  return t;
}

// The sum of all elements, so that every gradient starts as 1.
Var sum_of(Tape& tape, const Var& x) {
  float sum = 0;
  for (const float value : x.value().values()) sum += value;
  return tape.record(filled({1}, sum), [slot = x.slot()](const Tensor& dout) {
    accumulate_grad(slot, filled(slot->shape, dout.item()));
  });
}

TEST(Tape, gradients_accumulate_over_uses_and_passes) {
  const Var x = Var::parameter(filled({3}, 2));
  for (int pass = 1; pass <= 2; ++pass) {
    Tape tape;
    const Var y = add(tape, x, x);
    const Var z = add(tape, y, x);
    tape.backward(sum_of(tape, z));
    EXPECT_EQ(tape.size(), 0U);
    EXPECT_EQ(test::values_of(x.grad()), std::vector<float>(3, 3.0F * static_cast<float>(pass)));
  }
  x.zero_grad();
  EXPECT_FALSE(x.grad().defined());
}

// z = y + w reaches y's and w's slots with one shared tensor; what is added to y's gradient
// afterwards must not show in w's.
TEST(Tape, shared_gradient_is_copied_before_it_is_added_to) {
  const Var w = Var::parameter(filled({2}, 1));
  const Var y = Var::parameter(filled({2}, 1));
  Tape tape;
  const Var first = add(tape, y, y);
  const Var z = add(tape, y, w);
  tape.backward(sum_of(tape, add(tape, z, first)));
  EXPECT_EQ(test::values_of(w.grad()), (std::vector<float>{1, 1}));
  EXPECT_EQ(test::values_of(y.grad()), (std::vector<float>{3, 3}));
}

TEST(Tape, I6_gradient_of_another_dtype_is_refused) {
  const Var x = Var::parameter(filled({2}, 1));
  EXPECT_ERROR_HAS(accumulate_grad(x.slot(), Tensor::zeros({2}, DType::bf16)),
                   "got bf16 for a value of f32");
  EXPECT_FALSE(x.grad().defined());
  accumulate_grad(x.slot(), filled({2}, 1));
  EXPECT_ERROR_HAS(accumulate_grad(x.slot(), Tensor::zeros({2}, DType::f64)),
                   "got f64 for a value of f32");
  EXPECT_EQ(test::values_of(x.grad()), (std::vector<float>{1, 1}));
}

TEST(Tape, gradient_of_another_shape_is_refused) {
  const Var x = Var::parameter(filled({2, 1}, 1));
  EXPECT_ERROR_HAS(accumulate_grad(x.slot(), filled({1, 2}, 1)),
                   "got [1, 2] for a value of [2, 1]");
}

TEST(Tape, nothing_is_recorded_without_need) {
  Tape no_grad(Tape::Mode::no_grad);
  const Var x = Var::parameter(filled({2}, 1));
  EXPECT_FALSE(add(no_grad, x, x).requires_grad());
  Tape tape;
  EXPECT_FALSE(add(tape, Var(filled({2}, 1)), Var(filled({2}, 1))).requires_grad());
  EXPECT_EQ(no_grad.size() + tape.size(), 0U);
}

TEST(Tape, backward_needs_one_recorded_element) {
  Tape tape;
  const Var x = Var::parameter(filled({2}, 1));
  EXPECT_ERROR_HAS(tape.backward(Var(filled({1}, 1))), "depends on a parameter");
  EXPECT_ERROR_HAS(tape.backward(add(tape, x, x)), "got shape [2]");
}

TEST(Tape, kept_tensors_are_freed_as_backward_proceeds) {
  const Var x = Var::parameter(filled({1 << 16}, 0.5F));
  const std::int64_t before = tensor_memory().current_bytes;
  Tape tape;
  Var y = x;
  for (int i = 0; i < 8; ++i) y = gelu(tape, y);
  const Var loss = sum_of(tape, y);
  y = Var();
  const std::int64_t size = std::int64_t{4} << 16;
  EXPECT_GE(tensor_memory().current_bytes, before + 7 * size);
  reset_peak_tensor_memory();
  tape.backward(loss);
  // Beyond what forward kept, backward holds one gradient while it makes the next.
  EXPECT_LE(tensor_memory().peak_bytes, before + 10 * size);
  EXPECT_LE(tensor_memory().current_bytes, before + size + 4096);
}

TEST(Tape, unused_results_get_no_gradient) {
  const Var x = Var::parameter(filled({2}, 1));
  const Var unused_weight = Var::parameter(filled({2}, 1));
  Tape tape;
  (void)add(tape, x, unused_weight);
  tape.backward(sum_of(tape, add(tape, x, x)));
  EXPECT_FALSE(unused_weight.grad().defined());
  EXPECT_EQ(test::values_of(x.grad()), (std::vector<float>{2, 2}));
}

}  // namespace
}  // namespace fovea::lm
