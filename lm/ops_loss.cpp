// Losses: cross_entropy.
#include <algorithm>
#include <cmath>
#include <vector>

#include "lm/error.h"
#include "lm/ops.h"
#include "lm/parallel.h"
#include "lm/simd.h"

namespace fovea::lm {
namespace {

constexpr std::int64_t kRows = 64;  // rows of one task

// log sum exp of one row, summed in f64
FOVEA_LM_CLONES double log_sum_exp(const float* x, std::int64_t count) {
  float largest = x[0];
  for (std::int64_t c = 1; c < count; ++c) largest = x[c] > largest ? x[c] : largest;
  double lanes[simd::kLanes] = {};
  std::int64_t c = 0;
  for (; c + simd::kLanes <= count; c += simd::kLanes) {
    for (int l = 0; l < simd::kLanes; ++l) lanes[l] += simd::exp(x[c + l] - largest);
  }
  for (int l = 0; c < count; ++c, ++l) lanes[l] += simd::exp(x[c] - largest);
  double total = 0;
  for (const double lane : lanes) total += lane;
  return largest + std::log(total);
}

FOVEA_LM_CLONES void softmax_times(const float* x, std::int64_t count, float lse, float factor,
                                   float* dx) {
  for (std::int64_t c = 0; c < count; ++c) dx[c] = factor * simd::exp(x[c] - lse);
}

}  // namespace

CrossEntropy cross_entropy(Tape& tape, const Var& logits, std::span<const std::int32_t> targets,
                           std::int32_t ignored) {
  const Tensor& in = logits.value();
  const std::int64_t classes = in.dim(-1);
  const std::int64_t rows = classes == 0 ? 0 : in.numel() / classes;
  if (!in.contiguous() || rows != static_cast<std::int64_t>(targets.size())) {
    fail("[cross_entropy] one target for each row of contiguous logits {}; got {} targets",
         to_string(logits.shape()), targets.size());
  }
  CrossEntropy result;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == ignored) continue;
    if (targets[i] < 0 || targets[i] >= classes) {
      fail("[cross_entropy] targets must be 0 to {} or {}; got {} at index {}", classes - 1,
           ignored, targets[i], i);
    }
    ++result.counted;
  }
  if (result.counted == 0) {
    fail("[cross_entropy] every one of {} targets is ignored ({})", targets.size(), ignored);
  }

  std::vector<double> lse(targets.size());
  parallel_ranges(rows, kRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      lse[static_cast<std::size_t>(i)] = log_sum_exp(in.data() + i * classes, classes);
    }
  });
  double sum = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == ignored) continue;
    const auto at = static_cast<std::int64_t>(i) * classes + targets[i];
    sum += lse[i] - static_cast<double>(in.data()[at]);
  }
  result.value = sum / static_cast<double>(result.counted);
  Tensor loss = Tensor::empty({1});
  *loss.data() = static_cast<float>(result.value);
  if (!tape.records(logits)) {
    result.loss = std::move(loss);
    return result;
  }
  result.loss = tape.record(std::move(loss), [in, classes, rows, ignored, slot = logits.slot(),
                                              lse = std::move(lse), counted = result.counted,
                                              to = std::vector(targets.begin(), targets.end())](
                                                 const Tensor& dout) {
    const float factor = dout.item() / static_cast<float>(counted);
    const Tensor dlogits = Tensor::empty(in.shape());
    parallel_ranges(rows, kRows, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto row = static_cast<std::size_t>(i);
        float* dx = dlogits.data() + i * classes;
        if (to[row] == ignored) {
          std::fill_n(dx, classes, 0.0F);
          continue;
        }
        softmax_times(in.data() + i * classes, classes, static_cast<float>(lse[row]), factor, dx);
        dx[to[row]] -= factor;
      }
    });
    accumulate_grad(slot, dlogits);
  });
  return result;
}

}  // namespace fovea::lm
