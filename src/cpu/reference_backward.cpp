// cpu.reference.backward: the oracle's gradients, in f64 (reference_backward.h).
//
// Serves: every float dtype, head dim, layout and feature, except a paged KV cache and quantised
// evaluation. `tf32` is evaluated exactly. Always bitwise repeatable. Chosen only by name.
#include "cpu/reference_backward.h"

#include "cpu/isa.h"

namespace fovea {
namespace reference {
namespace {

bool wants_weight(const MutableOperand& gradient) {
  return std::any_of(std::begin(gradient.segments), std::end(gradient.segments),
                     [](const auto& segment) { return segment.norm_weight.present(); });
}

void store_weight_gradients(const Problem& p, const MutableOperand& gradient, const double* sums) {
  for (int s = 0; s < kMaxSegments; ++s) {
    const MutableTensorView& to = gradient.segments[s].norm_weight;
    if (!to.present()) continue;
    for (std::int64_t d = 0; d < p.head_dim; ++d) {
      double sum = 0;
      for (std::int64_t unit = 0; unit < unit_count(p); ++unit)
        sum += sums[(unit * kMaxSegments + s) * p.head_dim + d];
      store(to, d * to.strides[0], sum);
    }
  }
}

}  // namespace

SharedSums::SharedSums(Arena& arena, const Problem& p)
    : dq_weights(wants_weight(p.dq) ? arena.take<double>(unit_count(p), kMaxSegments * p.head_dim)
                                    : nullptr),
      dk_weights(wants_weight(p.dk) ? arena.take<double>(unit_count(p), kMaxSegments * p.head_dim)
                                    : nullptr),
      dsinks(p.dsinks.present() ? arena.take<double>(unit_count(p), p.group()) : nullptr),
      dmask(nullptr),
      mask_sizes{1, 1, 1, 1} {
  if (!p.dmask4.present()) return;
  for (std::size_t d = 0; d < 4; ++d)
    if (p.dmask4.strides[d] != 0) mask_sizes[d] = p.dmask4.shape[d];
  dmask = arena.take<double>(mask_sizes[0] * mask_sizes[1], mask_sizes[2] * mask_sizes[3]);
}

void store_shared_gradients(const Problem& p, const SharedSums& sums) {
  store_weight_gradients(p, p.dq, sums.dq_weights);
  store_weight_gradients(p, p.dk, sums.dk_weights);
  if (p.dsinks.present()) {
    for (std::int64_t h = 0; h < p.q_heads; ++h) {
      double sum = 0;
      for (std::int64_t b = 0; b < p.batch; ++b) sum += sums.dsinks[b * p.q_heads + h];
      store(p.dsinks, h * p.dsinks.strides[0], sum);
    }
  }
  if (sums.dmask == nullptr) return;
  const std::int64_t* size = sums.mask_sizes;
  const double* sum = sums.dmask;
  for (std::int64_t b = 0; b < size[0]; ++b)
    for (std::int64_t h = 0; h < size[1]; ++h)
      for (std::int64_t i = 0; i < size[2]; ++i)
        for (std::int64_t j = 0; j < size[3]; ++j)
          store(p.dmask4, place_of_mask(p.dmask4, b, h, i, j), *sum++);
}

}  // namespace reference

namespace {

Refusal supports(const Problem& problem) {
  return refuse_features_beyond(problem, kEveryFeature - (Feature::quantization | Feature::paged));
}

}  // namespace

extern const Kernel cpu_reference_backward;
const Kernel cpu_reference_backward = {
    "cpu.reference.backward",
    "cpu",
    "reference",
    Direction::backward,
    DeviceType::cpu,
    true,
    cpu::runs_on_every_cpu,
    supports,
    reference::backward_workspace<reference::Exact>,
    reference::backward_run<reference::Exact>,
};

}  // namespace fovea
