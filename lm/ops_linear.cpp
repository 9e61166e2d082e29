// Projections: linear.
#include "lm/error.h"
#include "lm/gemm.h"
#include "lm/ops.h"
#include "lm/parallel.h"
#include "lm/simd.h"

namespace fovea::lm {
namespace {

FOVEA_LM_CLONES void add_rows(const float* in, std::int64_t rows, std::int64_t stride,
                              std::int64_t columns, float* out) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t c = 0; c < columns; ++c) out[c] += in[i * stride + c];
  }
}

// The sum over rows of x [rows, width], in row order.
void sum_rows(const Tensor& x, std::int64_t rows, std::int64_t width, const GradTarget& target) {
  if (!target.accumulate) target.tensor.zero();
  parallel_ranges(width, 96, [&](std::int64_t begin, std::int64_t end) {
    add_rows(x.data() + begin, rows, width, end - begin, target.tensor.data() + begin);
  });
}

}  // namespace

Var linear(Tape& tape, const Var& x, const Var& weight, const std::optional<Var>& bias,
           WeightLayout layout) {
  const bool in_out = layout == WeightLayout::in_out;
  if (weight.value().rank() != 2 || x.value().rank() < 1 || !x.value().contiguous()) {
    fail("[linear] x [..., in], contiguous, and a weight of 2 dimensions; got x {}, weight {}",
         to_string(x.shape()), to_string(weight.shape()));
  }
  const std::int64_t in = weight.value().dim(in_out ? 0 : 1);
  const std::int64_t out = weight.value().dim(in_out ? 1 : 0);
  if (x.value().dim(-1) != in || (bias && bias->shape() != Shape{out})) {
    fail("[linear] x {} and bias {} do not fit the {} weight {}", to_string(x.shape()),
         bias ? to_string(bias->shape()) : "none", in_out ? "[in, out]" : "[out, in]",
         to_string(weight.shape()));
  }
  const std::int64_t rows = in == 0 ? 0 : x.value().numel() / in;

  Shape shape = x.shape();
  shape.back() = out;
  Tensor y = Tensor::empty(std::move(shape));
  const std::int64_t ld_weight = in_out ? out : in;
  gemm({.m = rows,
        .n = out,
        .k = in,
        .a = x.value().data(),
        .lda = in,
        .b = weight.value().data(),
        .ldb = ld_weight,
        .b_transposed = !in_out,
        .c = y.data(),
        .ldc = out,
        .bias = bias ? bias->value().data() : nullptr});

  const Var bias_var = bias.value_or(Var());
  if (!tape.records(x, weight, bias_var)) return y;
  return tape.record(
      std::move(y), [=, x_value = x.value(), weight_value = weight.value(), x_slot = x.slot(),
                     weight_slot = weight.slot(), bias_slot = bias_var.slot()](const Tensor& dout) {
        if (bias_slot) sum_rows(dout, rows, out, grad_target(bias_slot));
        if (weight_slot) {
          // in_out: x^T dout; out_in: dout^T x
          const GradTarget target = grad_target(weight_slot);
          gemm({.m = in_out ? in : out,
                .n = in_out ? out : in,
                .k = rows,
                .a = in_out ? x_value.data() : dout.data(),
                .lda = in_out ? in : out,
                .a_transposed = true,
                .b = in_out ? dout.data() : x_value.data(),
                .ldb = in_out ? out : in,
                .c = target.tensor.data(),
                .ldc = ld_weight,
                .accumulate = target.accumulate});
        }
        if (x_slot) {
          const GradTarget target = grad_target(x_slot);
          gemm({.m = rows,
                .n = in,
                .k = out,
                .a = dout.data(),
                .lda = out,
                .b = weight_value.data(),
                .ldb = ld_weight,
                .b_transposed = in_out,
                .c = target.tensor.data(),
                .ldc = in,
                .accumulate = target.accumulate});
        }
      });
}

}  // namespace fovea::lm
