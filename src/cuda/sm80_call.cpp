#include "cuda/sm80_call.h"

#include <algorithm>

namespace fovea::cuda {

ComputeMode mode_of(const Problem& p) {
  switch (p.compute) {
    case DType::bf16:
      return ComputeMode::bf16;
    case DType::f16:
      return ComputeMode::f16;
    default:
      return p.features.has(Feature::tf32) ? ComputeMode::tf32 : ComputeMode::f32;
  }
}

bool is_bent(const Problem& p) {
  return p.features.has(Feature::additive_mask) || p.features.has(Feature::softcap) ||
         p.features.has(Feature::alibi);
}
bool is_masked(const Problem& p) {
  return is_bent(p) || p.features.has(Feature::bool_mask) || p.features.has(Feature::dropout);
}

const DeviceProperties* properties_of(const Device& device) {
  const auto devices = runtime().devices();
  const auto index = static_cast<std::size_t>(device.index);
  return device.index >= 0 && index < devices.size() ? &devices[index] : nullptr;
}

Refusal available_sm80(const Device& device) {
  if (!runtime().unavailable().empty())
    return Refusal::because(RefusalCode::other, runtime().unavailable().c_str());
  const DeviceProperties* properties = properties_of(device);
  if (properties == nullptr) return Refusal::because(RefusalCode::other, "no such CUDA device");
  if (properties->major < 8)
    return Refusal::because(RefusalCode::instruction_set, "compute capability 8.0");
  return Refusal::accept();
}

std::int64_t padded_width(std::int64_t width) { return (width + 7) / 8 * 8; }

void name_weights(const MutableOperand& gradient, WeightGradient (&to)[plain::kMostSegments]) {
  for (int n = 0; n < gradient.count; ++n) {
    const MutableTensorView& weight = gradient.segments[n].norm_weight;
    if (weight.present()) to[n] = {weight.data, plain::element_of(weight.dtype), weight.strides[0]};
  }
}

void Staging::add(plain::Source& source, const RowSpace& space, Workspace& workspace) {
  if (!needs_stage(source, space.packed)) return;
  StageArgs& args = args_[count_++].emplace();
  args.from = source;
  args.space = space;
  args.padded = padded_width(source.width);
  auto* to = workspace.take<char>(
      static_cast<std::int64_t>(stage_bytes(space, args.padded, source.compute)));
  args.to = to;

  const std::int64_t rows = space.packed ? space.total() : space.rows();
  plain::Segment<const char*>& s = source.segments.at[0];
  s = {to, source.compute, 0, rows, 0, rows * args.padded, args.padded, 1};
  if (!space.packed) s.batch = space.heads() * s.head;
  source.segments.count = 1;
  source.pages = {};
  source.prologue = {};
}

Status Staging::run(int device, void* stream) const {
  for (int n = 0; n < count_; ++n)
    if (Status status = stage(device, *args_[n], stream); !status.ok()) return status;
  return {};
}

MaskLook::MaskLook(const plain::Call& call, Workspace& workspace) {
  if (call.scores.mask.data == nullptr) return;
  args_.mask = call.scores.mask;
  args_.shape = call.shape;
  args_.to = workspace.take<std::uint8_t>(mask_tile_counts(args_.mask, args_.shape).all());
}

MaskTiles MaskLook::tiles() const {
  return args_.mask.data == nullptr ? MaskTiles{}
                                    : mask_tiles_in(args_.mask, args_.shape, args_.to);
}

Status MaskLook::run(int device, const Launch& on) const {
  if (args_.mask.data == nullptr) return {};
  MaskTilesArgs args = args_;
  args.visible = on.mask_tiles_skipped;
  return mask_tiles(device, args, on.stream);
}

}  // namespace fovea::cuda
