#include "cpu/merge.h"

#include <cmath>
#include <limits>

#include "contract/elements.h"

namespace fovea::cpu {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

template <class View>
std::int64_t offset_of(const View& view, std::int64_t b, std::int64_t h, std::int64_t i) {
  return b * view.strides[0] + h * view.strides[1] + i * view.strides[2];
}

void merge_row(const MergeProblem& p, std::int64_t b, std::int64_t h, std::int64_t i) {
  const auto lse_of = [&](const TensorView& lse) {
    return load_element(lse.data, lse.dtype, offset_of(lse, b, h, i));
  };
  const double sink = p.sinks.present()
                          ? load_element(p.sinks.data, p.sinks.dtype, h * p.sinks.strides[0])
                          : kMinusInfinity;
  double largest = sink;
  for (const PartialResult& part : p.parts) {
    const double lse = lse_of(part.lse);
    if (std::isnan(lse) || lse > largest) largest = lse;  // NaN is kept
  }
  double sum = std::exp(sink - largest);
  for (const PartialResult& part : p.parts) sum += std::exp(lse_of(part.lse) - largest);
  const double lse = std::isinf(largest) ? largest : largest + std::log(sum);
  if (p.lse.present()) store_element(p.lse.data, p.lse.dtype, offset_of(p.lse, b, h, i), lse);
  for (std::int64_t d = 0; d < p.out.shape[3]; ++d) {
    double value = 0;
    for (const PartialResult& part : p.parts) {
      const double weight = lse == kMinusInfinity ? 0 : std::exp(lse_of(part.lse) - lse);
      if (weight == 0) continue;  // an empty part may hold anything
      value += weight * load_element(part.out.data, part.out.dtype,
                                     offset_of(part.out, b, h, i) + d * part.out.strides[3]);
    }
    store_element(p.out.data, p.out.dtype, offset_of(p.out, b, h, i) + d * p.out.strides[3], value);
  }
}

}  // namespace

Status merge(const MergeProblem& problem) {
  const auto& shape = problem.out.shape;
  for (std::int64_t b = 0; b < shape[0]; ++b)
    for (std::int64_t h = 0; h < shape[1]; ++h)
      for (std::int64_t i = 0; i < shape[2]; ++i) merge_row(problem, b, h, i);
  return {};
}

}  // namespace fovea::cpu
