// cuda.sm80.forward and cuda.sm80.decode.forward as rows of the kernel table: what they serve, the
// workspace they need, what runs in which order. The work is in sm80_forward_kernel.h.
#include "cuda/sm80_forward.h"

#include <algorithm>
#include <optional>

#include "cuda/merge.h"
#include "cuda/sm80_call.h"

namespace fovea::cuda {
namespace {

/// Packed query rows that a decode tile holds.
constexpr std::int64_t kDecodeRows = 16;
/// Keys below which splitting them costs more than it gains.
constexpr std::int64_t kFewestSplitKeys = 256;
/// Blocks that a multiprocessor is to have when keys are split.
constexpr std::int64_t kBlocksPerProcessor = 6;

ForwardVariant variant_of(const Problem& p, bool few) {
  const DeviceProperties* properties = properties_of(p.device);
  if (properties == nullptr) return {};
  const std::int64_t dim =
      std::max(p.head_dim, std::min<std::int64_t>(p.v_head_dim, kMaxValueColumns));
  const auto pick = [&](auto* of_mode) {
    return of_mode(dim, few, is_masked(p) || !(p.scale > 0), properties->shared_bytes);
  };
  switch (mode_of(p)) {
    case ComputeMode::bf16:
      return pick(FOVEA_CUDA_PICK(forward_bf16));
    case ComputeMode::f16:
      return pick(FOVEA_CUDA_PICK(forward_f16));
    case ComputeMode::tf32:
      return pick(FOVEA_CUDA_PICK(forward_tf32));
    default:
      return pick(FOVEA_CUDA_PICK(forward_f32));
  }
}

/// All that a run does.
struct ForwardCall {
  ForwardArgs args;
  ForwardVariant variant;
  Staging staging;
  MaskLook mask;
  std::optional<MergeSplitsArgs> merge;
  std::size_t workspace_bytes = 0;
};

void split_keys(const Problem& p, const ForwardTile& tile, ForwardArgs& args) {
  const std::int64_t processors = properties_of(p.device)->multiprocessors;
  const std::int64_t tasks = args.shape.batch * args.shape.kv_heads * args.value_tiles;
  const std::int64_t most = args.shape.kv_len / kFewestSplitKeys;
  args.splits = std::clamp<std::int64_t>(
      ceil_div(processors * kBlocksPerProcessor, std::max<std::int64_t>(tasks, 1)), 1,
      std::max<std::int64_t>(most, 1));
  args.split_keys = ceil_div(ceil_div(args.shape.kv_len, args.splits), tile.keys) * tile.keys;
  if (args.split_keys > 0) args.splits = ceil_div(args.shape.kv_len, args.split_keys);
}

ForwardCall make_call(const Problem& p, bool few, std::byte* memory) {
  ForwardCall call;
  Workspace workspace(memory);
  ForwardArgs& args = call.args;
  static_cast<plain::Call&>(args) = plain::plain_call(p);
  const RowSpace queries = rows_by_queries(args), keys = rows_by_keys(args);
  call.staging.add(args.q, queries, workspace);
  call.staging.add(args.k, keys, workspace);
  call.staging.add(args.v, keys, workspace);
  if (!few) call.mask = MaskLook(args, workspace);
  call.variant = variant_of(p, few);
  const ForwardTile& tile = call.variant.tile;

  args.out = plain::sink_like_out(p, p.out_segments);
  args.lse = plain::rows_of_heads<float*>(p, p.lse);
  args.mask_tiles = call.mask.tiles();
  args.score_scale = static_cast<float>(p.scale);
  args.bent = is_bent(p);
  args.value_tiles = ceil_div(p.v_head_dim, tile.values);
  args.pack = few ? p.group() : 1;
  args.row_tiles = ceil_div(p.q_len * args.pack, tile.rows);
  args.last_rows_first = args.band.left == kUnbounded && args.band.right != kUnbounded;
  if (few) split_keys(p, tile, args);
  args.tasks =
      p.batch * (few ? p.kv_heads : p.q_heads) * args.row_tiles * args.splits * args.value_tiles;
  if (args.splits > 1) {
    const std::int64_t rows = args.splits * queries.array_rows();
    args.partial_width = padded_width(p.v_head_dim);
    args.partial_sums = workspace.take<float>(rows * args.partial_width);
    args.partial_maxima = workspace.take<float>(rows);
    args.partial_weights = workspace.take<float>(rows);
    call.merge = MergeSplitsArgs{queries,
                                 args.partial_sums,
                                 args.partial_maxima,
                                 args.partial_weights,
                                 static_cast<int>(args.splits),
                                 args.partial_width,
                                 args.out,
                                 args.lse,
                                 args.scores.sinks,
                                 args.scores.dropout.keep_scale};
  }
  call.workspace_bytes = workspace.bytes();
  return call;
}

template <bool kFew>
std::size_t workspace_bytes(const Problem& p, int) {
  return make_call(p, kFew, nullptr).workspace_bytes;
}

template <bool kFew>
std::int64_t staged_copies(const Problem& p) {
  return make_call(p, kFew, nullptr).staging.count();
}

template <bool kFew>
Status run(const Problem& p, const Launch& on) {
  const ForwardCall call = make_call(p, kFew, on.workspace);
  const int device = p.device.index;
  if (call.args.tasks == 0) return {};
  if (Status s = call.staging.run(device, on.stream); !s.ok()) return s;
  if (Status s = call.mask.run(device, on); !s.ok()) return s;
  const LaunchShape shape{std::min<std::int64_t>(call.args.tasks, INT32_MAX),
                          call.variant.tile.shared_bytes};
  if (Status s = launch(device, call.variant.entry, shape, call.args, on.stream); !s.ok()) return s;
  return call.merge ? merge_splits(device, *call.merge, on.stream) : Status{};
}

template <bool kFew>
Refusal supports(const Problem& p) {
  if (kFew) {
    if (p.kv_heads > 0 && p.q_len * p.group() > kDecodeRows)
      return Refusal::because(RefusalCode::query_rows, p.q_len * p.group(), kDecodeRows);
    if (p.features.has(Feature::tf32))
      return Refusal::because(RefusalCode::feature, static_cast<std::int64_t>(Feature::tf32));
  }
  const Features served = kEveryFeature - (Feature::quantization | Feature::f64_lse);
  if (Refusal refusal = refuse_beyond_flash(p, served); !refusal.serves()) return refusal;
  if (variant_of(p, kFew).entry.threads == 0)
    return Refusal::because(RefusalCode::other, "no tile fits the device's shared memory");
  return Refusal::accept();
}

template <bool kFew>
constexpr Kernel forward_kernel(const char* id) {
  return {id,
          "cuda",
          "flash",
          Direction::forward,
          DeviceType::cuda,
          false,
          available_sm80,
          supports<kFew>,
          workspace_bytes<kFew>,
          run<kFew>,
          kFew,
          nullptr,
          staged_copies<kFew>};
}

}  // namespace
}  // namespace fovea::cuda

namespace fovea {

extern const Kernel cuda_sm80_forward, cuda_sm80_decode_forward;
const Kernel cuda_sm80_forward = cuda::forward_kernel<false>("cuda.sm80.forward");
const Kernel cuda_sm80_decode_forward = cuda::forward_kernel<true>("cuda.sm80.decode.forward");

}  // namespace fovea
