// cuda.sm90.forward as a row of the kernel table: what it serves, the workspace it needs, what runs
// in which order. The work is in sm90_forward_kernel.h.
#include "cuda/sm90_forward.h"

#include <algorithm>
#include <optional>

#include "cuda/sm80_call.h"
#include "cuda/sm90_call.h"

namespace fovea::cuda {
namespace {

constexpr const char* kName = "cuda.sm90.forward";

/// A section's K and V are to stay in the L2 cache.
constexpr std::int64_t kSectionBytes = std::int64_t{32} << 20;
constexpr std::int64_t kMostSectionHeads = 32;

HopperForwardVariant variant_of(const Problem& p) {
  const std::int64_t dim = std::max(p.head_dim, p.v_head_dim);
  const bool banded = p.features.has(Feature::band);
  return p.compute == DType::f16 ? FOVEA_CUDA_PICK(hopper_forward_f16)(dim, banded)
                                 : FOVEA_CUDA_PICK(hopper_forward_bf16)(dim, banded);
}

/// All that a run does.
struct HopperForwardCall {
  HopperForwardArgs args;
  HopperForwardVariant variant;
  Staging staging;
  std::optional<MapOf> q, k, v, out;
  std::int64_t tasks = 0;
  std::size_t workspace_bytes = 0;
};

HopperForwardCall make_call(const Problem& p, std::byte* memory) {
  HopperForwardCall call;
  Workspace workspace(memory);
  HopperForwardArgs& args = call.args;
  static_cast<plain::Call&>(args) = plain::plain_call(p);
  const RowSpace queries = rows_by_queries(args), keys = rows_by_keys(args);
  call.staging.add(args.q, queries, workspace);
  call.staging.add(args.k, keys, workspace);
  call.staging.add(args.v, keys, workspace);
  call.variant = variant_of(p);
  const HopperForwardTile& tile = call.variant.tile;

  args.out = plain::sink_like_out(p, p.out_segments);
  args.lse = plain::rows_of_heads<float*>(p, p.lse);
  call.q = map_of(args.q.segments, queries, p.head_dim, tile.query_box_rows);
  call.k = map_of(args.k.segments, keys, p.head_dim, tile.keys);
  call.v = map_of(args.v.segments, keys, p.v_head_dim, tile.keys);
  call.out = map_of(args.out.segments, queries, p.v_head_dim, tile.out_box_rows);
  const DType out_dtype = p.out.dtype;
  // A store writes the whole of the last 16 bytes of a row.
  args.out_mapped = call.out.has_value() && out_dtype == p.compute && p.v_head_dim % kCopyUnit == 0;

  args.exponent_scale = static_cast<float>(p.scale * 1.4426950408889634);
  const std::int64_t row_tiles = ceil_div(p.q_len, tile.rows);
  call.tasks = p.batch * p.q_heads * row_tiles;
  args.row_tiles = static_cast<int>(row_tiles);
  args.tasks = static_cast<int>(std::min<std::int64_t>(call.tasks, INT32_MAX));
  args.check_values = p.features.has(Feature::band) || p.features.has(Feature::varlen) ||
                      p.features.has(Feature::seqused_k);
  if (args.band.left == kUnbounded && args.band.right != kUnbounded) {
    const std::int64_t key_bytes = p.kv_len * (p.head_dim + p.v_head_dim) * 2;
    std::int64_t heads = 1;
    while (heads < kMostSectionHeads && ceil_div(2 * heads, p.group()) * key_bytes <= kSectionBytes)
      heads *= 2;
    args.section_heads = static_cast<int>(heads);
  }
  // Where tasks differ in length, blocks draw them.
  if (p.features.has(Feature::band) || p.features.has(Feature::varlen))
    args.drawn = workspace.take<std::uint32_t>(1);
  call.workspace_bytes = workspace.bytes();
  return call;
}

std::size_t workspace_bytes(const Problem& p, int) { return make_call(p, nullptr).workspace_bytes; }

std::int64_t staged_copies(const Problem& p) { return make_call(p, nullptr).staging.count(); }

Status run(const Problem& p, const Launch& on) {
  HopperForwardCall call = make_call(p, on.workspace);
  HopperForwardArgs& args = call.args;
  const int device = p.device.index;
  if (call.tasks == 0) return {};
  if (Status s = encode_input(kName, "q", args.q_map, args.q_steps, call.q); !s.ok()) return s;
  if (Status s = encode_input(kName, "k", args.k_map, args.k_steps, call.k); !s.ok()) return s;
  if (Status s = encode_input(kName, "v", args.v_map, args.v_steps, call.v); !s.ok()) return s;
  args.out_mapped = args.out_mapped && begins_aligned(*call.out);
  if (args.out_mapped)
    if (Status s = encode(args.out_map, args.out_steps, *call.out); !s.ok()) return s;
  if (Status s = call.staging.run(device, on.stream); !s.ok()) return s;
  if (args.drawn != nullptr)
    if (Status s = runtime().clear(device, args.drawn, sizeof(*args.drawn), on.stream); !s.ok())
      return s;
  const std::int64_t blocks =
      std::min<std::int64_t>(call.tasks, properties_of(p.device)->multiprocessors);
  return launch(device, call.variant.entry, {blocks, call.variant.tile.shared_bytes}, args,
                on.stream);
}

Refusal supports(const Problem& p) {
  const auto refuse = [](const char* why) { return Refusal::because(RefusalCode::other, why); };
  if (Refusal refusal = refuse_beyond_hopper(p); !refusal.serves()) return refusal;
  const HopperForwardCall call = make_call(p, nullptr);
  if (!fits_hopper(p.device, call.variant.tile.shared_bytes))
    return refuse("no tile fits the device's shared memory");
  if (call.tasks == 0) return Refusal::accept();
  if (p.kv_len == 0) return refuse("no keys");
  if (call.tasks > INT32_MAX / 2) return refuse("more rows than the copy engine counts");
  return refuse_beyond_copies({&call.q, &call.k, &call.v});
}

}  // namespace

constexpr Kernel kSm90Forward = {
    kName, "cuda",           "flash",      Direction::forward, DeviceType::cuda,
    false, available_hopper, supports,     workspace_bytes,    run,
    false, nullptr,          staged_copies};

}  // namespace fovea::cuda

namespace fovea {

extern const Kernel cuda_sm90_forward;
const Kernel cuda_sm90_forward = cuda::kSm90Forward;

}  // namespace fovea
