// Row-wise and elementwise operators: layer_norm, gelu, add.
#include <cmath>

#include "lm/error.h"
#include "lm/ops.h"
#include "lm/parallel.h"
#include "lm/simd.h"

namespace fovea::lm {
namespace {

using simd::kLanes;

constexpr std::int64_t kRows = 64;           // rows of one task
constexpr std::int64_t kElements = 1 << 14;  // elements of one task

// sum over c of f(c), c in [0, width), in kLanes partial sums.
template <class F>
FOVEA_LM_INLINE float sum(std::int64_t width, F f) {
  float lanes[kLanes] = {};
  std::int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += f(c + l);
  }
  for (int l = 0; c < width; ++c, ++l) lanes[l] += f(c);
  return simd::sum_lanes(lanes);
}

// x, y [rows, width]; mean, rstd [rows]
FOVEA_LM_CLONES void layer_norm_forward(const float* x, const float* gain, const float* shift,
                                        std::int64_t rows, std::int64_t width, float eps, float* y,
                                        float* mean, float* rstd) {
  const float scale = 1.0F / static_cast<float>(width);
  for (std::int64_t i = 0; i < rows; ++i, x += width, y += width) {
    const float m = sum(width, [&](std::int64_t c) { return x[c]; }) * scale;
    const float variance =
        sum(width, [&](std::int64_t c) { return (x[c] - m) * (x[c] - m); }) * scale;
    const float r = 1.0F / std::sqrt(variance + eps);
    for (std::int64_t c = 0; c < width; ++c) y[c] = (x[c] - m) * r * gain[c] + shift[c];
    mean[i] = m;
    rstd[i] = r;
  }
}

// dx = rstd (g - mean(g) - n mean(g n)) with n the normalised x, g = dout gain; dgain and dshift
// [width] gather the sums over these rows
FOVEA_LM_CLONES void layer_norm_backward(const float* x, const float* gain, const float* dout,
                                         const float* mean, const float* rstd, std::int64_t rows,
                                         std::int64_t width, float* dx, bool accumulate,
                                         float* dgain, float* dshift) {
  const float scale = 1.0F / static_cast<float>(width);
  for (std::int64_t i = 0; i < rows; ++i, x += width, dout += width) {
    const float m = mean[i];
    const float r = rstd[i];
    for (std::int64_t c = 0; c < width; ++c) {
      dgain[c] += dout[c] * (x[c] - m) * r;
      dshift[c] += dout[c];
    }
    if (dx == nullptr) continue;
    const float g = sum(width, [&](std::int64_t c) { return dout[c] * gain[c]; }) * scale;
    const float gn =
        sum(width, [&](std::int64_t c) { return dout[c] * gain[c] * (x[c] - m) * r; }) * scale;
    for (std::int64_t c = 0; c < width; ++c) {
      const float d = r * (dout[c] * gain[c] - g - (x[c] - m) * r * gn);
      dx[c] = accumulate ? dx[c] + d : d;
    }
    dx += width;
  }
}

constexpr float kGeluScale = 0.7978845608F;  // sqrt(2 / pi)
constexpr float kGeluCubic = 0.044715F;

FOVEA_LM_CLONES void gelu_forward(const float* x, std::int64_t count, float* y) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float v = x[i];
    const float t = simd::tanh(kGeluScale * (v + kGeluCubic * v * v * v));
    y[i] = 0.5F * v * (1.0F + t);
  }
}

FOVEA_LM_CLONES void gelu_backward(const float* x, const float* dout, std::int64_t count, float* dx,
                                   float keep) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float v = x[i];
    const float t = simd::tanh(kGeluScale * (v + kGeluCubic * v * v * v));
    const float slope = 0.5F * (1.0F + t) +
                        0.5F * v * (1.0F - t * t) * kGeluScale * (1.0F + 3.0F * kGeluCubic * v * v);
    dx[i] = (keep != 0 ? dx[i] : 0.0F) + dout[i] * slope;
  }
}

FOVEA_LM_CLONES void add_elements(const float* a, const float* b, std::int64_t count, float* y) {
  for (std::int64_t i = 0; i < count; ++i) y[i] = a[i] + b[i];
}

}  // namespace

Var layer_norm(Tape& tape, const Var& x, const Var& gain, const Var& shift, double eps) {
  const Tensor& in = x.value();
  const std::int64_t width = in.dim(-1);
  if (gain.shape() != Shape{width} || shift.shape() != Shape{width} || !in.contiguous()) {
    fail("[layer_norm] gain and shift must be [{}] for a contiguous x {}; got {} and {}", width,
         to_string(x.shape()), to_string(gain.shape()), to_string(shift.shape()));
  }
  const std::int64_t rows = width == 0 ? 0 : in.numel() / width;
  Tensor y = Tensor::empty(x.shape());
  const Tensor mean = Tensor::empty({rows});
  const Tensor rstd = Tensor::empty({rows});
  parallel_ranges(rows, kRows, [&](std::int64_t begin, std::int64_t end) {
    layer_norm_forward(in.data() + begin * width, gain.value().data(), shift.value().data(),
                       end - begin, width, static_cast<float>(eps), y.data() + begin * width,
                       mean.data() + begin, rstd.data() + begin);
  });
  if (!tape.records(x, gain, shift)) return y;
  return tape.record(std::move(y), [=, gain_value = gain.value(), x_slot = x.slot(),
                                    gain_slot = gain.slot(),
                                    shift_slot = shift.slot()](const Tensor& dout) {
    const std::int64_t tasks = (rows + kRows - 1) / kRows;
    const Tensor partial = Tensor::zeros({tasks, 2, width});
    const GradTarget target = x_slot ? grad_target(x_slot) : GradTarget{};
    parallel_tasks(tasks, [&](std::int64_t task) {
      const std::int64_t begin = task * kRows;
      float* sums = partial.data() + task * 2 * width;
      layer_norm_backward(in.data() + begin * width, gain_value.data(), dout.data() + begin * width,
                          mean.data() + begin, rstd.data() + begin, std::min(kRows, rows - begin),
                          width, x_slot ? target.tensor.data() + begin * width : nullptr,
                          target.accumulate, sums, sums + width);
    });
    for (int part = 0; part < 2; ++part) {
      const auto& slot = part == 0 ? gain_slot : shift_slot;
      if (!slot) continue;
      const GradTarget to = grad_target(slot);
      if (!to.accumulate) to.tensor.zero();
      for (std::int64_t task = 0; task < tasks; ++task) {
        const float* sums = partial.data() + (task * 2 + part) * width;
        add_elements(to.tensor.data(), sums, width, to.tensor.data());
      }
    }
  });
}

Var gelu(Tape& tape, const Var& x) {
  const Tensor& in = x.value();
  if (!in.contiguous()) fail("[gelu] x must be contiguous; got shape {}", to_string(x.shape()));
  Tensor y = Tensor::empty(x.shape());
  parallel_ranges(in.numel(), kElements, [&](std::int64_t begin, std::int64_t end) {
    gelu_forward(in.data() + begin, end - begin, y.data() + begin);
  });
  if (!tape.records(x)) return y;
  return tape.record(std::move(y), [in, slot = x.slot()](const Tensor& dout) {
    const GradTarget target = grad_target(slot);
    parallel_ranges(in.numel(), kElements, [&](std::int64_t begin, std::int64_t end) {
      gelu_backward(in.data() + begin, dout.data() + begin, end - begin,
                    target.tensor.data() + begin, target.accumulate ? 1.0F : 0.0F);
    });
  });
}

Var add(Tape& tape, const Var& a, const Var& b) {
  if (a.shape() != b.shape() || !a.value().contiguous() || !b.value().contiguous()) {
    fail("[add] contiguous values of equal shape are wanted; got {} and {}", to_string(a.shape()),
         to_string(b.shape()));
  }
  Tensor y = Tensor::empty(a.shape());
  parallel_ranges(y.numel(), kElements, [&](std::int64_t begin, std::int64_t end) {
    add_elements(a.value().data() + begin, b.value().data() + begin, end - begin, y.data() + begin);
  });
  if (!tape.records(a, b)) return y;
  return tape.record(std::move(y), [a_slot = a.slot(), b_slot = b.slot()](const Tensor& dout) {
    if (a_slot) accumulate_grad(a_slot, dout);
    if (b_slot) accumulate_grad(b_slot, dout);
  });
}

}  // namespace fovea::lm
