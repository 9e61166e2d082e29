// cuda.sm90.backward as a row of the kernel table: what it serves, the workspace it needs, what
// runs in which order. The work is in sm90_backward_kernel.h.
#include "cuda/sm90_backward.h"

#include <algorithm>

#include "contract/format.h"
#include "cuda/backward_steps.h"
#include "cuda/sm90_call.h"

namespace fovea::cuda {
namespace {

HopperBackwardVariant variant_of(const Problem& p) {
  const std::int64_t dim = std::max(p.head_dim, p.v_head_dim);
  return p.compute == DType::f16 ? FOVEA_CUDA_PICK(hopper_backward_f16)(dim)
                                 : FOVEA_CUDA_PICK(hopper_backward_bf16)(dim);
}

/// Q, dO and the sums of dQ of a section are to stay in the L2 cache.
int section_heads(const Problem& p) {
  constexpr std::int64_t kSectionBytes = std::int64_t{32} << 20, kMostHeads = 32;
  const std::int64_t bytes = p.group() * p.q_len * (p.head_dim * 6 + p.v_head_dim * 2);
  std::int64_t heads = 1;
  while (heads < kMostHeads && 2 * heads * bytes <= kSectionBytes) heads *= 2;
  return static_cast<int>(heads);
}

/// All that a run does.
struct HopperBackwardCall {
  HopperBackwardArgs args;
  HopperBackwardVariant variant;
  BackwardSteps steps;
  std::optional<MapOf> q, k, v, dout;
  std::size_t workspace_bytes = 0;
};

HopperBackwardCall make_call(const Problem& p, std::byte* memory) {
  HopperBackwardCall call;
  Workspace workspace(memory);
  BackwardArgs common;
  call.variant = variant_of(p);
  const HopperBackwardTile& tile = call.variant.tile;
  call.steps.plan(p, {tile.keys, tile.rows, kMaxGradientColumns, 0, tile.shared_bytes, true},
                  common, workspace);
  const RowSpace queries = rows_by_queries(common), keys = rows_by_keys(common);
  call.q = map_of(common.q.segments, queries, p.head_dim, tile.rows);
  call.k = map_of(common.k.segments, keys, p.head_dim, tile.keys);
  call.v = map_of(common.v.segments, keys, p.v_head_dim, tile.keys);
  call.dout = map_of(common.dout.segments, queries, p.v_head_dim, tile.rows);

  HopperBackwardArgs& args = call.args;
  args.shape = common.shape;
  args.lengths = common.lengths;
  args.band = common.band;
  args.q = common.q.segments.at[0];
  args.k = common.k.segments.at[0];
  args.v = common.v.segments.at[0];
  args.dout = common.dout.segments.at[0];
  args.lse = common.lse;
  args.delta = common.delta;
  args.row_tiles.data = workspace.take<float>(args.row_tiles.lay_out(queries) * RowTiles::kFloats);
  call.steps.prepare.tiles = args.row_tiles;
  args.dlse = common.dlse;
  args.sinks = common.scores.sinks;
  if (const Sums& dq = common.dq; dq.row > 0)
    args.dq = {dq.data, dq.batch / dq.row, dq.head / dq.row, dq.row};
  args.dk = common.dk;
  args.dv = common.dv;
  args.dk_sums = common.dk_sums;
  args.score_scale = common.score_scale;
  args.key_tiles = static_cast<int>(std::min<std::int64_t>(common.key_tiles, INT32_MAX));
  args.tasks = static_cast<int>(std::min<std::int64_t>(common.tasks, INT32_MAX));
  if (args.band.left == kUnbounded && args.band.right != kUnbounded)
    args.section_heads = section_heads(p);
  args.exponent_scale = static_cast<float>(p.scale * 1.4426950408889634);
  const bool uneven = p.features.has(Feature::band) || p.features.has(Feature::varlen);
  args.check_values = uneven || p.features.has(Feature::seqused_k);
  // Where tasks differ in length, blocks draw them.
  if (uneven) {
    args.drawn = workspace.take<std::uint32_t>(4);
    call.steps.prepare.zeros[2] = {args.drawn, 4 * sizeof(*args.drawn)};
  }
  call.workspace_bytes = workspace.bytes();
  return call;
}

std::size_t workspace_bytes(const Problem& p, int) { return make_call(p, nullptr).workspace_bytes; }

std::int64_t staged_copies(const Problem& p) { return make_call(p, nullptr).steps.staging.count(); }

Status run(const Problem& p, const Launch& on) {
  HopperBackwardCall call = make_call(p, on.workspace);
  HopperBackwardArgs& args = call.args;
  const int device = p.device.index;
  Status status;
  const auto then = [&](auto&& step) {
    if (status.ok()) status = step();
  };
  if (args.tasks > 0) {
    then([&] { return encode_input("cuda.sm90.backward", "q", args.q_map, args.q_steps, call.q); });
    then([&] { return encode_input("cuda.sm90.backward", "k", args.k_map, args.k_steps, call.k); });
    then([&] { return encode_input("cuda.sm90.backward", "v", args.v_map, args.v_steps, call.v); });
    then([&] {
      return encode_input("cuda.sm90.backward", "dout", args.dout_map, args.dout_steps, call.dout);
    });
  }
  then([&] { return call.steps.before(device, on); });
  if (args.tasks > 0)
    then([&] {
      const std::int64_t blocks =
          std::min<std::int64_t>(args.tasks, properties_of(p.device)->multiprocessors);
      return launch(device, call.variant.entry, {blocks, call.variant.tile.shared_bytes}, args,
                    on.stream);
    });
  then([&] { return call.steps.after(device, on); });
  return status;
}

Refusal supports(const Problem& p) {
  const auto refuse = [](const char* why) { return Refusal::because(RefusalCode::other, why); };
  if (Refusal refusal = refuse_beyond_hopper(p); !refusal.serves()) return refusal;
  if (p.deterministic) return refuse("does not repeat gradients to the bit");
  const HopperBackwardCall call = make_call(p, nullptr);
  if (!fits_hopper(p.device, call.variant.tile.shared_bytes))
    return refuse("no tile fits the device's shared memory");
  if (p.q_len == 0 || call.args.tasks == 0) return refuse("no queries or no keys");
  if (call.args.tasks > INT32_MAX / 2) return refuse("more rows than the copy engine counts");
  return refuse_beyond_copies({&call.q, &call.k, &call.v, &call.dout});
}

}  // namespace

constexpr Kernel kSm90Backward = {"cuda.sm90.backward",
                                  "cuda",
                                  "flash",
                                  Direction::backward,
                                  DeviceType::cuda,
                                  false,
                                  available_hopper,
                                  supports,
                                  workspace_bytes,
                                  run,
                                  false,
                                  nullptr,
                                  staged_copies};

}  // namespace fovea::cuda

namespace fovea {

extern const Kernel cuda_sm90_backward;
const Kernel cuda_sm90_backward = cuda::kSm90Backward;

}  // namespace fovea
