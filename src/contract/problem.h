// Problem: a validated call, as every kernel receives it.
#pragma once

#include <array>
#include <cstdint>

#include <fovea/attention.h>

namespace fovea {

enum class Direction : std::uint8_t { forward, backward };

/// "forward" or "backward"; messages and ids use it.
const char* name_of(Direction direction);

/// What a call uses beyond dense q, k, v with a scale. Kernels state the set they serve.
enum class Feature : std::uint32_t {
  gqa = 1u << 0,   ///< q_heads != kv_heads
  band = 1u << 1,  ///< a side of the band is limited
  bool_mask = 1u << 2,
  additive_mask = 1u << 3,
  alibi = 1u << 4,
  softcap = 1u << 5,
  sinks = 1u << 6,
  dropout = 1u << 7,
  varlen = 1u << 8,
  seqused_k = 1u << 9,
  paged = 1u << 10,
  segments = 1u << 11,  ///< more than one segment in an operand
  qk_norm = 1u << 12,
  rope = 1u << 13,
  mixed_dtypes = 1u << 14,  ///< operand dtypes differ from the compute dtype
  f32_result = 1u << 15,    ///< out or a gradient in f32 while its default is narrower
  tf32 = 1u << 16,
  quantization = 1u << 17,
  dlse = 1u << 18,
  dmask = 1u << 19,
  dsinks = 1u << 20,
  dnorm_weight = 1u << 21,
  segmented_results = 1u << 22,  ///< out or dout in more than one segment
  f64_lse = 1u << 23,            ///< forward's lse in f64 while the compute dtype is narrower
};

/// A set of features.
struct Features {
  std::uint32_t bits = 0;
  constexpr Features() = default;
  constexpr Features(Feature feature)  // NOLINT(google-explicit-constructor)
      : bits(static_cast<std::uint32_t>(feature)) {}
  constexpr explicit Features(std::uint32_t value) : bits(value) {}
  constexpr bool has(Feature feature) const {
    return (bits & static_cast<std::uint32_t>(feature)) != 0;
  }
  constexpr void add(Feature feature) { bits |= static_cast<std::uint32_t>(feature); }
  friend constexpr Features operator|(Features a, Features b) { return Features(a.bits | b.bits); }
  friend constexpr Features operator-(Features a, Features b) { return Features(a.bits & ~b.bits); }
  friend constexpr bool operator==(Features, Features) = default;
};
constexpr Features operator|(Feature a, Feature b) { return Features(a) | Features(b); }

inline constexpr int kFeatureCount = 24;
inline constexpr Features kEveryFeature{(1u << kFeatureCount) - 1};

/// The widest rows of q, k and v that the contract has.
inline constexpr std::int64_t kMaxHeadDim = 512;

/// Human name of a feature, as refusals print it: "softcap", "paged KV cache".
const char* name_of(Feature feature);

/// A validated call. Views are the caller's; whatever is derived from them is stated here once.
struct Problem {
  Direction direction = Direction::forward;
  AttentionParams params;
  Features features;
  Device device;

  // Forward results, or (backward) what forward left behind and the upstream gradients. `out`,
  // `saved_out` and `dout` are the first segment: all of it without Feature::segmented_results.
  MutableTensorView out, lse;
  TensorView saved_out, saved_lse, dout, dlse;
  MutableOperand out_segments;
  Operand saved_out_segments, dout_segments;
  MutableOperand dq, dk, dv;
  MutableTensorView dmask, dsinks;

  // Maxima where lengths vary by sequence.
  std::int64_t batch = 0;
  std::int64_t q_len = 0, kv_len = 0;
  std::int64_t q_heads = 0, kv_heads = 0;
  std::int64_t head_dim = 0, v_head_dim = 0;

  DType compute = DType::none;  ///< dtype of the products' operands
  double scale = 0;             ///< resolved
  bool deterministic = false;   ///< asked for; CPU kernels always are, a GPU's backward may not be

  /// The mask as a 4-dimensional view [batch, q_heads, q_len, kv_len] with stride 0 where it is
  /// broadcast; absent without a mask. dmask4 likewise, for the mask's gradient.
  TensorView mask4;
  MutableTensorView dmask4;

  [[nodiscard]] std::int64_t group() const { return q_heads / kv_heads; }
  [[nodiscard]] const TensorView& q() const { return params.q.segments[0].tensor; }
  [[nodiscard]] const TensorView& k() const { return params.k.segments[0].tensor; }
  [[nodiscard]] const TensorView& v() const { return params.v.segments[0].tensor; }
};

}  // namespace fovea
