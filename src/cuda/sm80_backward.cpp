// cuda.sm80.backward as a row of the kernel table: what it serves, the workspace it needs, what
// runs in which order. The work is in sm80_backward_kernel.h and sm80_dmask_kernel.h.
#include "cuda/sm80_backward.h"

#include <algorithm>

#include "cuda/finish.h"
#include "cuda/prepare.h"
#include "cuda/sm80_call.h"

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

/// Memory that is zeros when the kernels begin.
struct Zeros {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// All that a run does.
struct BackwardCall {
  BackwardArgs args;
  Variants variants;
  Staging staging;
  MaskLook mask;
  PrepareArgs prepare;
  Zeros zeros[2];
  FinishArgs finish[2];
  int finishes = 0;
  MaskGradientArgs mask_gradient;
  std::size_t workspace_bytes = 0;
};

/// Sums of a gradient in the workspace.
Sums take_sums(const RowSpace& space, std::int64_t width, Workspace& workspace) {
  const std::int64_t rows = space.packed ? space.total() : space.rows();
  Sums sums{workspace.take<float>(space.array_rows() * width), 0, rows * width, width, 1};
  if (!space.packed) sums.batch = space.heads() * sums.head;
  return sums;
}

FinishArgs& add_finish(BackwardCall& call, const MutableOperand& gradient,
                       const plain::Source& input, const RowSpace& space, const Sums& sums,
                       Workspace& workspace) {
  FinishArgs& finish = call.finish[call.finishes++];
  finish.input = input;
  finish.space = space;
  finish.sums = sums.data;
  finish.padded = sums.row;
  finish.sink = plain::sink_of_gradient(gradient, input);
  name_weights(gradient, finish.weights);
  if (any_wanted(finish.weights))
    finish.shares = workspace.take<float>(
        static_cast<std::int64_t>(finish_bytes(space, input.width) / sizeof(float)));
  return finish;
}

BackwardCall make_call(const Problem& p, std::byte* memory) {
  BackwardCall call;
  Workspace workspace(memory);
  BackwardArgs& args = call.args;
  static_cast<plain::Call&>(args) = plain::plain_call(p);
  const RowSpace queries = rows_by_queries(args), keys = rows_by_keys(args);
  call.variants = variants_of(p);
  const BackwardTile& tile = call.variants.backward.tile;
  args.lse = plain::rows_of_heads<const float*>(p, p.saved_lse);
  args.dout = plain::source_like_out(p, p.dout_segments);
  args.score_scale = static_cast<float>(p.scale);
  args.bent = is_bent(p);

  // delta, dsinks
  PrepareArgs& prepare = call.prepare;
  prepare.space = queries;
  prepare.out = plain::source_like_out(p, p.saved_out_segments);
  prepare.dout = args.dout;
  prepare.lse = args.lse;
  prepare.dlse = args.dlse = plain::rows_of_heads<const float*>(p, p.dlse);
  args.delta = take_sums(queries, 1, workspace);
  prepare.delta = args.delta.data;
  prepare.sinks = args.scores.sinks;
  if (p.dsinks.present()) {
    prepare.dsinks = p.dsinks.data;
    prepare.dsinks_element = plain::element_of(p.dsinks.dtype);
    prepare.dsinks_stride = p.dsinks.strides[0];
    prepare.shares = workspace.take<double>(
        static_cast<std::int64_t>(prepare_bytes(queries, true) / sizeof(double)));
  }

  // q, k, v, dout as the kernels read them
  const plain::Source q = args.q, k = args.k, v = args.v;
  call.staging.add(args.q, queries, workspace);
  call.staging.add(args.k, keys, workspace);
  call.staging.add(args.v, keys, workspace);
  call.staging.add(args.dout, queries, workspace);
  call.mask = MaskLook(args, workspace);
  args.mask_tiles = call.mask.tiles();

  // gradients
  args.key_tiles = ceil_div(args.shape.kv_len, tile.keys);
  args.row_tiles = ceil_div(p.q_len, tile.rows);
  args.column_tiles = ceil_div(std::max(p.head_dim, p.v_head_dim), tile.columns);
  args.tasks = p.batch * p.kv_heads * args.key_tiles * args.column_tiles;
  if (plain::wanted(p.dq)) {
    args.dq = take_sums(queries, padded_width(p.head_dim), workspace);
    call.zeros[0] = {args.dq.data,
                     static_cast<std::size_t>(queries.array_rows() * args.dq.row) * sizeof(float)};
    add_finish(call, p.dq, q, queries, args.dq, workspace).factor = args.score_scale;
    if (p.deterministic) {
      const std::int64_t turns = p.batch * p.q_heads * args.row_tiles * args.column_tiles;
      args.turns = workspace.take<std::uint32_t>(turns);
      call.zeros[1] = {args.turns, static_cast<std::size_t>(turns) * sizeof(std::uint32_t)};
    }
  }
  if (plain::wanted(p.dk)) {
    if (k.prologue.norm || k.prologue.rotate) {
      args.dk_sums = take_sums(keys, padded_width(p.head_dim), workspace);
      add_finish(call, p.dk, k, keys, args.dk_sums, workspace);
    } else {
      args.dk = plain::sink_of_gradient(p.dk, k);
    }
  }
  if (plain::wanted(p.dv)) args.dv = plain::sink_of_gradient(p.dv, v);

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

std::int64_t staged_copies(const Problem& p) { return make_call(p, nullptr).staging.count(); }

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
  then([&] { return prepare(device, call.prepare, on.stream); });
  then([&] { return call.staging.run(device, on.stream); });
  then([&] { return call.mask.run(device, on); });
  for (const Zeros& zeros : call.zeros)
    if (zeros.bytes > 0)
      then([&] { return runtime().clear(device, zeros.data, zeros.bytes, on.stream); });
  then([&] {
    return launch_tiles(device, call.variants.backward, call.args.tasks, call.args, on.stream);
  });
  for (int n = 0; n < call.finishes; ++n)
    then([&] { return finish(device, call.finish[n], on.stream); });
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
