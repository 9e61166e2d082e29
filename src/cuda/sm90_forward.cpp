// cuda.sm90.forward as a row of the kernel table: what it serves, the workspace it needs, what runs
// in which order. The work is in sm90_forward_kernel.h.
#include "cuda/sm90_forward.h"

#include <algorithm>
#include <optional>

#include "contract/format.h"
#include "cuda/sm80_call.h"

namespace fovea::cuda {
namespace {

/// Coordinates of maps, and what is added to them, fit 32 bits.
constexpr std::int64_t kMostRows = std::int64_t{1} << 28;
/// Elements of 16 bytes.
constexpr std::int64_t kCopyUnit = 8;
/// A section's K and V are to stay in the L2 cache.
constexpr std::int64_t kSectionBytes = std::int64_t{32} << 20;
constexpr std::int64_t kMostSectionHeads = 32;

HopperForwardVariant variant_of(const Problem& p) {
  const std::int64_t dim = std::max(p.head_dim, p.v_head_dim);
  const bool banded = p.features.has(Feature::band);
  return p.compute == DType::f16 ? FOVEA_CUDA_PICK(hopper_forward_f16)(dim, banded)
                                 : FOVEA_CUDA_PICK(hopper_forward_bf16)(dim, banded);
}

struct MapOf {
  TensorBox box;
  MapSteps steps;
};

/// Rows [batch, heads, rows, width] of one segment as boxes of `box_rows` rows; empty where the
/// copy engine cannot read them, alignment of the first one aside.
template <class Pointer>
std::optional<MapOf> map_of(const plain::Segments<Pointer>& segments, const RowSpace& space,
                            std::int64_t width, int box_rows) {
  if (segments.count != 1) return {};
  const plain::Segment<Pointer>& s = segments.at[0];
  if (s.element != plain::Element::bf16 && s.element != plain::Element::f16) return {};
  MapOf map;
  TensorBox& box = map.box;
  box.data = s.data;
  box.element = s.element == plain::Element::f16 ? TensorElement::f16 : TensorElement::bf16;
  const std::int64_t rows = space.packed ? space.total() : space.rows();
  const std::int64_t batch = space.packed ? 1 : space.shape.batch;
  const std::int64_t sizes[4] = {width, rows, space.heads(), batch};
  const std::int64_t strides[4] = {s.column, s.row, s.head, s.batch};
  for (int d = 0; d < 4; ++d) {
    box.sizes[d] = sizes[d];
    box.strides[d] = strides[d];
    if (d == 0 ? strides[d] == 1 || sizes[d] == 1 : false) continue;
    if (d > 0 && (sizes[d] == 1 || (d > 1 && strides[d] == 0))) {
      // One place for all: the coordinate is 0.
      box.sizes[d] = 1;
      box.strides[d] = kCopyUnit;
      continue;
    }
    if (d == 0 || strides[d] < kCopyUnit || strides[d] % kCopyUnit != 0 ||
        strides[d] >= std::int64_t{1} << 38)
      return {};
    if (sizes[d] > kMostRows) return {};
  }
  box.strides[0] = 1;
  box.box[0] = 64;
  box.box[1] = box_rows;
  map.steps = {box.sizes[2] > 1 ? 1 : 0, box.sizes[3] > 1 ? 1 : 0};
  return map;
}

bool begins_aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }

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

Status encode(TensorMap& to, MapSteps& steps, const MapOf& from) {
  steps = from.steps;
  return runtime().encode(to, from.box);
}

Status run(const Problem& p, const Launch& on) {
  HopperForwardCall call = make_call(p, on.workspace);
  HopperForwardArgs& args = call.args;
  const int device = p.device.index;
  if (call.tasks == 0) return {};
  for (const auto& [map, name] : {std::pair{&call.q, "q"}, {&call.k, "k"}, {&call.v, "v"}})
    if (!map->has_value() || !begins_aligned((*map)->box.data))
      return {
          StatusCode::invalid,
          formatted("[cuda.sm90.forward] {} must begin at a multiple of 16 bytes, as it did when "
                    "the plan was made",
                    name)};
  if (Status s = encode(args.q_map, args.q_steps, *call.q); !s.ok()) return s;
  if (Status s = encode(args.k_map, args.k_steps, *call.k); !s.ok()) return s;
  if (Status s = encode(args.v_map, args.v_steps, *call.v); !s.ok()) return s;
  args.out_mapped = args.out_mapped && begins_aligned(call.out->box.data);
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

bool is_hopper(const DeviceProperties& properties) {
  return properties.major == 9 && properties.minor == 0;
}

Refusal available(const Device& device) {
  if (Refusal refusal = available_sm80(device); !refusal.serves()) return refusal;
  const DeviceProperties* properties = properties_of(device);
  if (!is_hopper(*properties))
    return Refusal::because(RefusalCode::instruction_set, "compute capability 9.0");
  return Refusal::accept();
}

Refusal supports(const Problem& p) {
  const auto refuse = [](const char* why) { return Refusal::because(RefusalCode::other, why); };
  if (p.compute != DType::bf16 && p.compute != DType::f16)
    return Refusal::because(RefusalCode::compute_dtype, static_cast<std::int64_t>(p.compute), 0,
                            "f16, bf16");
  const Features unserved = Feature::quantization | Feature::f64_lse | Feature::bool_mask |
                            Feature::additive_mask | Feature::alibi | Feature::softcap |
                            Feature::dropout | Feature::paged | Feature::tf32;
  if (Refusal refusal = refuse_beyond_flash(p, kEveryFeature - unserved); !refusal.serves())
    return refusal;
  constexpr std::int64_t kMostColumns = 128;
  if (p.head_dim > kMostColumns)
    return Refusal::because(RefusalCode::head_dim, p.head_dim, kMostColumns);
  if (p.v_head_dim > kMostColumns)
    return Refusal::because(RefusalCode::v_head_dim, p.v_head_dim, kMostColumns);
  if (!(p.scale > 0)) return refuse("a scale that is not positive");
  const HopperForwardCall call = make_call(p, nullptr);
  // Asked of another device, which is not available, what the kernel serves is the same.
  const DeviceProperties* properties = properties_of(p.device);
  if (properties != nullptr && is_hopper(*properties) &&
      call.variant.tile.shared_bytes > properties->shared_bytes)
    return refuse("no tile fits the device's shared memory");
  if (call.tasks == 0) return Refusal::accept();
  if (p.kv_len == 0) return refuse("no keys");
  if (p.q_len > kMostRows || p.kv_len > kMostRows || call.tasks > INT32_MAX / 2)
    return refuse("more rows than the copy engine counts");
  if (!call.q || !call.k || !call.v) return refuse("strides that the copy engine cannot read");
  if (!begins_aligned(call.q->box.data) || !begins_aligned(call.k->box.data) ||
      !begins_aligned(call.v->box.data))
    return refuse("a tensor that does not begin at a multiple of 16 bytes");
  return Refusal::accept();
}

}  // namespace

constexpr Kernel kSm90Forward = {"cuda.sm90.forward", "cuda", "flash",   Direction::forward,
                                 DeviceType::cuda,    false,  available, supports,
                                 workspace_bytes,     run,    false,     nullptr,
                                 staged_copies};

}  // namespace fovea::cuda

namespace fovea {

extern const Kernel cuda_sm90_forward;
const Kernel cuda_sm90_forward = cuda::kSm90Forward;

}  // namespace fovea
