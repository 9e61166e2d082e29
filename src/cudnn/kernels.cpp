// cudnn.forward and cudnn.backward: NVIDIA's cuDNN as a candidate among the CUDA kernels.
//
// The maths, tiles and budgets are cuDNN's. Domain: f16 and bf16 in their own dtype, dense tensors
// whose rows are whole multiples of 16 bytes apart, head dims that are multiples of 8 (to 128; on
// sm_90 to 256, backward since cuDNN 9.13), grouped heads, bands with both anchors, lse in and out.
// Calls of fewer than 16 queries are left to the decoding kernels: each new length of a cache would
// build a graph.
//
// Speed: docs/performance/cuda.md.
#include <algorithm>
#include <cmath>

#include "contract/band.h"
#include "contract/format.h"
#include "contract/kernel.h"
#include "cudnn/graphs.h"
#include "cudnn/library.h"

namespace fovea::cudnn {
namespace {

constexpr std::int64_t kMostHeadDim = 128, kMostHopperHeadDim = 256;
constexpr int kWideBackwardSince = 91300;
constexpr std::int64_t kFewestQueries = 16;
constexpr std::uintptr_t kAlignment = 16;
/// Elements that a tensor may reach over, within 32 bits.
constexpr std::int64_t kMaxReach = std::int64_t{1} << 31;
/// A repeatable backward on sm_90 keeps dP, which grows with the square of the length.
constexpr std::int64_t kMostDpBytes = std::int64_t{1} << 30;

Refusal refuse(const char* why) { return Refusal::because(RefusalCode::other, why); }

/// Strides of dimensions of size 1 carry no meaning, but cuDNN looks at them.
template <class View>
Layout layout_of(const View& view, std::array<std::int64_t, 4> shape) {
  Layout layout;
  layout.shape = shape;
  std::int64_t inner = 1;
  for (std::size_t n = 4; n-- > 0;) {
    const bool given = static_cast<int>(n) < view.rank && shape[n] != 1;
    layout.strides[n] = given ? view.strides[n] : inner;
    inner = layout.strides[n] * shape[n];
  }
  return layout;
}

GraphSpec spec_of(const Problem& p) {
  GraphSpec spec;
  spec.device = p.device.index;
  spec.direction = p.direction;
  spec.dtype = p.compute;
  spec.scale = static_cast<float>(p.scale);
  if (p.features.has(Feature::band)) {
    spec.anchor = static_cast<int>(p.params.band->anchor);
    spec.left = p.params.band->left;
    spec.right = p.params.band->right;
  }
  const std::array<std::int64_t, 4> q{p.batch, p.q_heads, p.q_len, p.head_dim},
      k{p.batch, p.kv_heads, p.kv_len, p.head_dim}, v{p.batch, p.kv_heads, p.kv_len, p.v_head_dim},
      out{p.batch, p.q_heads, p.q_len, p.v_head_dim}, lse{p.batch, p.q_heads, p.q_len, 1};
  auto& t = spec.tensors;
  t[kQ] = layout_of(p.q(), q);
  t[kK] = layout_of(p.k(), k);
  t[kV] = layout_of(p.v(), v);
  if (p.direction == Direction::forward) {
    t[kOut] = layout_of(p.out, out);
    spec.has_lse = p.lse.present();
    if (spec.has_lse) t[kLse] = layout_of(p.lse, lse);
    return spec;
  }
  spec.has_lse = true;
  spec.deterministic = p.deterministic;
  t[kOut] = layout_of(p.saved_out, out);
  t[kLse] = layout_of(p.saved_lse, lse);
  t[kDout] = layout_of(p.dout, out);
  t[kDq] = layout_of(p.dq.segments[0].tensor, q);
  t[kDk] = layout_of(p.dk.segments[0].tensor, k);
  t[kDv] = layout_of(p.dv.segments[0].tensor, v);
  return spec;
}

Pointers pointers_of(const Problem& p) {
  const auto given = [](const void* data) { return const_cast<void*>(data); };
  Pointers at{};
  at[kQ] = given(p.q().data);
  at[kK] = given(p.k().data);
  at[kV] = given(p.v().data);
  if (p.direction == Direction::forward) {
    at[kOut] = p.out.data;
    at[kLse] = p.lse.data;
    return at;
  }
  at[kOut] = given(p.saved_out.data);
  at[kLse] = given(p.saved_lse.data);
  at[kDout] = given(p.dout.data);
  at[kDq] = p.dq.segments[0].tensor.data;
  at[kDk] = p.dk.segments[0].tensor.data;
  at[kDv] = p.dv.segments[0].tensor.data;
  return at;
}

std::size_t tensors_of(Direction direction) {
  return direction == Direction::forward ? kForwardTensors : kBackwardTensors;
}

Refusal available(const Device& device) {
  if (!library().trouble.empty()) return refuse(library().trouble.c_str());
  const Capability capability = capability_of(device.index);
  if (capability.major == 0) return refuse("no such CUDA device");
  if (capability.major < 8)
    return Refusal::because(RefusalCode::instruction_set, "compute capability 8.0");
  return Refusal::accept();
}

/// What cuDNN reads and writes lies as it wants it.
Refusal check_layouts(const Problem& p, const GraphSpec& spec) {
  const Pointers pointers = pointers_of(p);
  const std::int64_t step = static_cast<std::int64_t>(kAlignment) / size_of(p.compute);
  for (std::size_t n = 0; n < tensors_of(p.direction); ++n) {
    if (n == kLse) continue;
    const Layout& t = spec.tensors[n];
    if (t.strides[3] != 1) return refuse("a last stride that is not 1");
    std::int64_t reach = 0;
    for (std::size_t d = 0; d < 3; ++d) {
      if (t.strides[d] <= 0) return refuse("a stride that is zero or negative");
      if (t.strides[d] % step != 0) return refuse("rows that are not a multiple of 16 bytes apart");
      if (t.shape[d] > 1 && t.strides[d] > kMaxReach / t.shape[d])
        return refuse("a tensor that reaches over 2^31 elements");
      if (t.shape[d] > 1) reach += t.strides[d] * (t.shape[d] - 1);
    }
    if (reach >= kMaxReach) return refuse("a tensor that reaches over 2^31 elements");
    if (reinterpret_cast<std::uintptr_t>(pointers[n]) % kAlignment != 0)
      return refuse("a tensor that does not begin at a multiple of 16 bytes");
  }
  if (!spec.has_lse) return Refusal::accept();
  // Version by version, cuDNN learnt to write and to read lse where its strides say.
  const Layout& lse = spec.tensors[kLse];
  const bool packed =
      lse.strides[2] == 1 && lse.strides[1] == p.q_len && lse.strides[0] == p.q_heads * p.q_len;
  const int strided_since = p.direction == Direction::forward ? 91200 : 92600;
  if (!packed && library().version < strided_since)
    return refuse("an lse that is not contiguous needs a later cuDNN");
  return std::all_of(lse.strides.begin(), lse.strides.end(), [](auto s) { return s > 0; })
             ? Refusal::accept()
             : refuse("a stride that is zero or negative");
}

Refusal check_band(const Problem& p, Capability capability) {
  if (!p.features.has(Feature::band)) return Refusal::accept();
  const Band& band = *p.params.band;
  const ResolvedBand resolved = resolve(band, p.q_len, p.kv_len);
  const Range first = resolved.keys_of(0), last = resolved.keys_of(p.q_len - 1);
  if (first.empty() || last.empty()) return refuse("a row that sees nothing");
  // cuDNN multiplies such keys by 0, which makes NaN of what need never have been written.
  if (first.begin > 0 || last.end < p.kv_len) return refuse("a band with keys that no row sees");
  const int version = library().version;
  const bool left = band.left != kUnbounded, right = band.right != kUnbounded;
  constexpr std::int64_t kMostSide = std::int64_t{1} << 30;
  if ((left && band.left >= kMostSide) || (right && band.right >= kMostSide))
    return refuse("a side of the band beyond 2^30");
  if (left && p.q_len > p.kv_len) return refuse("a left window with more queries than keys");
  if (left && !right && version < 91002) return refuse("a left window alone needs cuDNN 9.10.2");
  if (version == 91400 && left && !right && p.kv_len > 1024)
    return refuse("cuDNN 9.14.0 is known to be wrong for a left window alone");
  if (version <= 90900 && left && capability.major == 9 && band.anchor == Anchor::bottom_right)
    return refuse("a left window from the bottom right needs cuDNN 9.10.2 on this device");
  return Refusal::accept();
}

Refusal check_backward(const Problem& p, Capability capability) {
  for (const MutableOperand* gradient : {&p.dq, &p.dk, &p.dv})
    if (gradient->count != 1 || !gradient->segments[0].tensor.present())
      return refuse("fewer gradients than dq, dk and dv");
  if (p.saved_lse.dtype != DType::f32) return refuse("an lse that is not f32");
  if (p.dout.dtype != p.compute || p.saved_out.dtype != p.compute)
    return refuse("an out or dout in another dtype");
  if (!p.deterministic) return Refusal::accept();
  if (capability.major == 10 && library().version >= 91800) return Refusal::accept();
  if (capability.major != 9)
    return refuse(
        "a repeatable backward is served on compute capability 9.0 (10.x from 9.18) only");
  const double dp = 2.0 * static_cast<double>(p.batch * p.q_heads) *
                    static_cast<double>((p.q_len + 63) / 64 * 64) *
                    static_cast<double>((p.kv_len + 127) / 128 * 128);
  return dp <= static_cast<double>(kMostDpBytes)
             ? Refusal::accept()
             : refuse("a repeatable backward that would keep more than 1 GiB of dP");
}

Refusal supports(const Problem& p) {
  if (p.compute != DType::f16 && p.compute != DType::bf16)
    return Refusal::because(RefusalCode::compute_dtype, static_cast<std::int64_t>(p.compute), 0,
                            "f16, bf16");
  if (Refusal refusal = refuse_features_beyond(p, Feature::gqa | Feature::band); !refusal.serves())
    return refusal;
  if (p.batch == 0 || p.kv_len == 0) return refuse("nothing to compute");
  if (p.q_len < kFewestQueries) return refuse("fewer than 16 queries");
  const Capability capability = capability_of(p.device.index);
  const bool wide = capability.major == 9 &&
                    (p.direction == Direction::forward || library().version >= kWideBackwardSince);
  const std::int64_t most = wide ? kMostHopperHeadDim : kMostHeadDim;
  if (p.head_dim > most) return Refusal::because(RefusalCode::head_dim, p.head_dim, most);
  if (p.v_head_dim > most) return Refusal::because(RefusalCode::v_head_dim, p.v_head_dim, most);
  if (p.head_dim % 8 != 0 || p.v_head_dim % 8 != 0)
    return refuse("head dims that are no multiples of 8");
  if (!(p.scale > 0) || !std::isfinite(static_cast<float>(p.scale)))
    return refuse("a scale that is not positive");
  if (p.direction == Direction::backward)
    if (Refusal refusal = check_backward(p, capability); !refusal.serves()) return refusal;
  const GraphSpec spec = spec_of(p);
  if (Refusal refusal = check_layouts(p, spec); !refusal.serves()) return refusal;
  if (Refusal refusal = check_band(p, capability); !refusal.serves()) return refusal;
  const BuiltGraph& built = graph_for(spec);
  return built.graph != nullptr ? Refusal::accept() : refuse(built.trouble.c_str());
}

std::size_t workspace_bytes(const Problem& p, int) { return graph_for(spec_of(p)).workspace_bytes; }

Status run(const Problem& p, const Launch& on) {
  const char* where = p.direction == Direction::forward ? "cudnn.forward" : "cudnn.backward";
  const GraphSpec spec = spec_of(p);
  const BuiltGraph* built = find_graph(spec);
  if (built == nullptr || built->graph == nullptr)
    return {StatusCode::internal,
            formatted("[{}] no graph was built when the plan was made", where)};
  const Pointers pointers = pointers_of(p);
  for (std::size_t n = 0; n < tensors_of(p.direction); ++n)
    if (n != kLse && reinterpret_cast<std::uintptr_t>(pointers[n]) % kAlignment != 0)
      return {StatusCode::invalid,
              formatted("[{}] tensors must begin at multiples of 16 bytes, as they did when the "
                        "plan was made; got {}",
                        where, pointers[n])};
  return run_graph(*built, spec, pointers, on.workspace, on.stream);
}

const char* version() { return library().name.c_str(); }

}  // namespace
}  // namespace fovea::cudnn

namespace fovea {

extern const Kernel cudnn_forward, cudnn_backward;
const Kernel cudnn_forward = {"cudnn.forward",      "cudnn",          "flash",
                              Direction::forward,   DeviceType::cuda, false,
                              cudnn::available,     cudnn::supports,  cudnn::workspace_bytes,
                              cudnn::run,
                              /*specialist=*/false, cudnn::version};
const Kernel cudnn_backward = {"cudnn.backward",     "cudnn",          "flash",
                               Direction::backward,  DeviceType::cuda, false,
                               cudnn::available,     cudnn::supports,  cudnn::workspace_bytes,
                               cudnn::run,
                               /*specialist=*/false, cudnn::version};

}  // namespace fovea
