// The attention contract: what a call computes. The formulas stand in docs/maths.md.
//
// For one head of one sequence, i and j local to the sequence, o = 0 (Anchor::top_left) or
// o = kv_len - q_len (Anchor::bottom_right):
//
//   s(i,j) = softcap(scale * q_i.k_j) + mask(i,j) - slope * |i + o - j|
//   lse_i  = log( sum over visible j of exp s(i,j)  [+ exp sink] )
//   p(i,j) = exp(s(i,j) - lse_i) where visible, else 0
//   out_i  = sum_j p(i,j) * drop(i,j) * v_j
//
// A row that sees nothing has out 0, lse -inf (the sink's value with a sink) and gradients 0. NaN
// and infinity in keys and values that a row does not see do not reach it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include <fovea/tensor.h>

namespace fovea {

/// Where the diagonal lies when q_len and kv_len differ. There is no default.
enum class Anchor : std::uint8_t {
  top_left = 1,  ///< query i is at key position i
  bottom_right =
      2,  ///< query i is at key position i + kv_len - q_len: the last query sees all keys
};

/// A side of a band that has no limit.
inline constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max();

/// Query i sees key j when -left <= j - (i + o) <= right. Sides are >= 0 or kUnbounded.
struct Band {
  Anchor anchor;
  std::int64_t left;
  std::int64_t right;

  static constexpr Band causal(Anchor anchor) { return {anchor, kUnbounded, 0}; }
  static constexpr Band window(Anchor anchor, std::int64_t left, std::int64_t right) {
    return {anchor, left, right};
  }
  friend constexpr bool operator==(const Band&, const Band&) = default;
};

/// ALiBi: subtracts slope * |i + o - j|. slopes: [q_heads] or [batch, q_heads], any float dtype.
struct Alibi {
  TensorView slopes;
  Anchor anchor = Anchor::top_left;  ///< must equal the band's anchor where a band is set
};

/// Dropout on the probabilities by counter-based random numbers (Philox4x32-10): the decision of
/// (i, j) depends only on seed, offset, stream and the global (i, j), never on tiling or backend.
struct Dropout {
  double probability = 0;          ///< in [0, 1]; 0 = off, 1 = all dropped (out is 0)
  std::uint64_t seed = 0;          ///< the Philox key
  std::uint64_t offset = 0;        ///< tells calls with one seed apart; all 64 bits count
  TensorView seed_tensor;          ///< optional i64 [1] in device memory; overrides `seed`
  TensorView offset_tensor;        ///< optional i64 [1] in device memory; added to `offset`
  TensorView streams;              ///< optional i32/i64 [batch, q_heads]; absent: b * q_heads + h
  std::int64_t row_origin = 0;     ///< global position of row i = 0 (shards)
  std::int64_t column_origin = 0;  ///< global position of column j = 0
};

/// Packed sequences of different lengths. q/out/dq are [total_q, heads, dim], k/v [total_k, heads,
/// dim]; lse is [q_heads, total_q]. Sequence b owns rows cu_seqlens[b] .. cu_seqlens[b+1].
struct Varlen {
  TensorView cu_seqlens_q;  ///< i32/i64 [batch + 1], in the operands' device memory
  TensorView cu_seqlens_k;  ///< likewise; absent with a paged KV cache
  std::int64_t max_q_len = 0;
  std::int64_t max_kv_len = 0;
};

/// Paged KV cache: k and v are pools [pages, page_size, kv_heads, dim]; page n of sequence b is
/// block_table[b, n]. Lengths come from `AttentionParams::seqused_k`. Forward only.
struct PagedKv {
  TensorView block_table;  ///< i32 [batch, max_pages]
  std::int64_t max_kv_len = 0;
};

enum class RopeStyle : std::uint8_t {
  interleaved = 1,  ///< pairs (2i, 2i+1): GPT-J, Meta LLaMA, FLUX
  half = 2,         ///< pairs (i, i + rotary_dim/2): NeoX, Hugging Face LLaMA
};

enum class RopeTable : std::uint8_t {
  half = 1,        ///< tables [.., rotary_dim/2]: one value a pair
  duplicated = 2,  ///< tables [.., rotary_dim]: each value twice, in the order of the style
};

/// Rotary position embedding, fused before the product: a' = a cos - b sin, b' = a sin + b cos.
struct Rope {
  TensorView cos, sin;  ///< [S, n], [1, S, n] or [batch, S, n], any float dtype
  RopeStyle style = RopeStyle::interleaved;
  RopeTable table = RopeTable::half;
  std::int64_t rotary_dim = 0;      ///< even, <= head_dim; 0 = head_dim
  std::int64_t q_offset = 0;        ///< table row of query 0 (rows run over concatenated segments)
  std::int64_t k_offset = 0;        ///< table row of key 0
  TensorView q_offsets, k_offsets;  ///< optional i32/i64 [batch], added to the offsets above
  bool rotate_q = true;
  bool rotate_k = true;  ///< false: the (cached) keys are already rotated
};

/// RMSNorm over head_dim of q and k before RoPE; weights stand in the segments.
struct QkNorm {
  bool enabled = false;
  double eps = 1e-6;
};

inline constexpr int kMaxSegments = 4;

/// One piece of an operand along the sequence, with its own norm weight.
template <class View>
struct BasicSegment {
  View tensor;
  View norm_weight;  ///< [head_dim] for q and k under QkNorm; absent = ones
};

/// An operand given as 1 to 4 segments along the sequence (FLUX: text, image), read in place.
/// In gradients an absent tensor means "not wanted".
template <class View>
struct BasicOperand {
  std::int32_t count = 0;
  BasicSegment<View> segments[kMaxSegments];

  BasicOperand() = default;
  BasicOperand(const View& tensor) {  // NOLINT(google-explicit-constructor)
    if (tensor.present()) add(tensor);
  }
  template <class Other>
  requires std::is_convertible_v<Other, View>
  // NOLINTNEXTLINE(google-explicit-constructor)
  BasicOperand(const Other& tensor) : BasicOperand(View(tensor)) {}

  /// Appends a segment. A fifth one makes `count` exceed kMaxSegments, which validation refuses.
  BasicOperand& add(const View& tensor, const View& norm_weight = {}) {
    if (count < kMaxSegments) segments[count] = {tensor, norm_weight};
    ++count;
    return *this;
  }
  [[nodiscard]] bool present() const { return count > 0; }
};

using Operand = BasicOperand<TensorView>;
using MutableOperand = BasicOperand<MutableTensorView>;

/// How inputs of different dtypes are treated.
struct DTypePolicy {
  DType compute = DType::none;  ///< none: strict

  /// Mixed q/k/v dtypes are refused.
  static constexpr DTypePolicy strict() { return {}; }
  /// Each input is read in its own dtype and rounded once to `dtype`.
  static constexpr DTypePolicy cast(DType dtype) { return {dtype}; }
};

enum class F32Precision : std::uint8_t {
  ieee,  ///< f32-class error
  tf32,  ///< products may be rounded to tf32
};

enum class QuantizedDType : std::uint8_t { none = 0, int8 = 3, int4 = 4 };
enum class QuantizedBlock : std::uint8_t { tensor_wise = 0, block_wise = 2 };

/// Quantised evaluation of floating-point inputs.
struct Quantization {
  QuantizedDType dtype = QuantizedDType::none;
  QuantizedBlock block = QuantizedBlock::tensor_wise;
};

/// Everything that defines the function, the same for forward and backward.
///
/// Shapes (dense): q [batch, q_heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim],
/// v [batch, kv_heads, kv_len, v_head_dim]; q_heads % kv_heads == 0, query head h reads KV head
/// h / (q_heads / kv_heads). head_dim and v_head_dim are 1 to 512.
struct AttentionParams {
  Operand q, k, v;
  /// Default 1/sqrt(head_dim). Zero and negative are legal; other magnitudes than 0 are 1e-30 to
  /// 1e30.
  std::optional<double> scale;
  std::optional<Band> band;
  /// Boolean (true = attend) or additive (any float dtype; a 0/1 float mask is additive), 1 to 4
  /// dimensions broadcastable to [batch, q_heads, q_len, kv_len], any strides. Never expanded.
  TensorView mask;
  Alibi alibi;
  double softcap = 0;  ///< c * tanh(x / c); 0 = off
  TensorView sinks;    ///< [q_heads], any float dtype; -inf = none
  Dropout dropout;
  Varlen varlen;
  TensorView seqused_k;  ///< i32/i64 [batch]: keys used of each sequence, clamped to the capacity
  PagedKv paged;
  QkNorm qk_norm;
  Rope rope;
  DTypePolicy dtype_policy;
  F32Precision f32_precision = F32Precision::ieee;
  Quantization quantization;
};

/// out [batch, q_heads, q_len, v_head_dim] in the compute dtype or f32, any strides (chosen by the
/// caller), as 1 to 4 segments along q_len like the operands; lse [batch, q_heads, q_len] f32 (or
/// f64, which only the reference kernels write), natural log, optional. Outputs must not overlap
/// each other or any input; interleaved views of one buffer do not overlap.
struct ForwardArgs {
  AttentionParams params;
  MutableOperand out;
  MutableTensorView lse;
};

/// out and lse as forward wrote them; dout like out (any strides, 0 too; its own segments); dlse
/// [batch, q_heads, q_len] like lse, optional.
/// Each gradient is optional, has its input's shape, and its input's dtype or f32. Segment
/// gradients stand at their segment's index; `norm_weight` in dq/dk asks for the weight's gradient.
struct BackwardArgs {
  AttentionParams params;
  Operand out;
  TensorView lse;
  Operand dout;
  TensorView dlse;
  MutableOperand dq, dk, dv;
  MutableTensorView dmask;   ///< additive masks only: the mask's shape (broadcasts are reduced)
  MutableTensorView dsinks;  ///< [q_heads]
};

}  // namespace fovea
