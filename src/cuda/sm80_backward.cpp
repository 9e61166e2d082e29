// cuda.sm80.backward as a row of the kernel table: what it serves, the workspace it needs, what
// runs in which order. The work is in sm80_backward_kernel.h and sm80_dmask_kernel.h.
#include "cuda/sm80_backward.h"

#include <algorithm>

#include "cuda/backward_steps.h"

namespace fovea::cuda {
namespace {

struct Variants {
  BackwardVariant backward, mask_gradient;
};

Variants variants_of(const Problem& p) {
  const DeviceProperties* properties = properties_of(p.device);
  if (properties == nullptr) return {};
  const std::int64_t dim = std::max(p.head_dim, p.v_head_dim);
  const auto pick = [&](auto* backward, auto* mask_gradient) -> Variants {
    return {backward(dim, is_masked(p), properties->shared_bytes),
            mask_gradient(dim, properties->shared_bytes)};
  };
  switch (mode_of(p)) {
    case ComputeMode::bf16:
      return pick(FOVEA_CUDA_PICK(backward_bf16), FOVEA_CUDA_PICK(mask_gradient_bf16));
    case ComputeMode::f16:
      return pick(FOVEA_CUDA_PICK(backward_f16), FOVEA_CUDA_PICK(mask_gradient_f16));
    case ComputeMode::tf32:
      return pick(FOVEA_CUDA_PICK(backward_tf32), FOVEA_CUDA_PICK(mask_gradient_tf32));
    default:
      return pick(FOVEA_CUDA_PICK(backward_f32), FOVEA_CUDA_PICK(mask_gradient_f32));
  }
}

/// All that a run does.
struct BackwardCall {
  BackwardArgs args;
  Variants variants;
  BackwardSteps steps;
  MaskGradientArgs mask_gradient;
  std::size_t workspace_bytes = 0;
};

BackwardCall make_call(const Problem& p, std::byte* memory) {
  BackwardCall call;
  Workspace workspace(memory);
  BackwardArgs& args = call.args;
  call.variants = variants_of(p);
  call.steps.plan(p, call.variants.backward.tile, args, workspace);
  if (p.dmask.present()) {
    const BackwardTile& small = call.variants.mask_gradient.tile;
    MaskGradientArgs& gradient = call.mask_gradient;
    static_cast<BackwardArgs&>(gradient) = args;
    gradient.turns = nullptr;
    gradient.dmask = plain::mask_sink(p);
    gradient.row_tiles = ceil_div(p.q_len, small.rows);
    gradient.mask_key_tiles = ceil_div(args.shape.kv_len, small.keys);
    const auto tiles = [&](int d, std::int64_t all) {
      return gradient.dmask.sizes[d] == 1 ? 1 : all;
    };
    if (gradient.dmask.data != nullptr)
      gradient.mask_tasks = tiles(0, p.batch) * tiles(1, p.q_heads) * tiles(2, gradient.row_tiles) *
                            tiles(3, gradient.mask_key_tiles);
  }
  call.workspace_bytes = workspace.bytes();
  return call;
}

std::size_t workspace_bytes(const Problem& p, int) { return make_call(p, nullptr).workspace_bytes; }

std::int64_t staged_copies(const Problem& p) { return make_call(p, nullptr).steps.staging.count(); }

Status launch_tiles(int device, const BackwardVariant& variant, std::int64_t tasks,
                    const auto& args, void* stream) {
  const LaunchShape shape{std::min<std::int64_t>(tasks, INT32_MAX), variant.tile.shared_bytes};
  return launch(device, variant.entry, shape, args, stream);
}

Status run(const Problem& p, const Launch& on) {
  const BackwardCall call = make_call(p, on.workspace);
  const int device = p.device.index;
  Status status;
  const auto then = [&](auto&& step) {
    if (status.ok()) status = step();
  };
  then([&] { return call.steps.before(device, on); });
  then([&] {
    return launch_tiles(device, call.variants.backward, call.args.tasks, call.args, on.stream);
  });
  then([&] { return call.steps.after(device, on); });
  then([&] {
    return launch_tiles(device, call.variants.mask_gradient, call.mask_gradient.mask_tasks,
                        call.mask_gradient, on.stream);
  });
  return status;
}

Refusal supports(const Problem& p) {
  const Features served =
      kEveryFeature - (Feature::quantization | Feature::f64_lse | Feature::paged);
  if (Refusal refusal = refuse_beyond_flash(p, served); !refusal.serves()) return refusal;
  const Variants variants = variants_of(p);
  if (variants.backward.entry.threads == 0 ||
      (p.dmask.present() && variants.mask_gradient.entry.threads == 0))
    return Refusal::because(RefusalCode::other, "no tile fits the device's shared memory");
  return Refusal::accept();
}

}  // namespace
}  // namespace fovea::cuda

namespace fovea {

extern const Kernel cuda_sm80_backward;
const Kernel cuda_sm80_backward = {"cuda.sm80.backward",
                                   "cuda",
                                   "flash",
                                   Direction::backward,
                                   DeviceType::cuda,
                                   false,
                                   cuda::available_sm80,
                                   cuda::supports,
                                   cuda::workspace_bytes,
                                   cuda::run,
                                   /*specialist=*/false,
                                   /*version=*/nullptr,
                                   cuda::staged_copies};

}  // namespace fovea
