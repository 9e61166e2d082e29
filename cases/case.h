// A test case as data. Its name lists its parameters, so that a name is a reproducer:
//
//   b2_hq8_hkv2_q257_k513_d64_bf16_causal
//
// Tokens are joined by '_'. Required: b, hq, hkv, q, k, d with a number, and a dtype. In varlen and
// paged cases q and k are the maxima; the lengths themselves follow from the name.
//
//   dv32                      v_head_dim, where it differs from d
//   f32 | f16 | bf16 | f64    dtype of q, k and v; f32-f32-bf16 gives each its own
//   cast-bf16                 DTypePolicy::cast
//   f32out f32grads tf32      results in f32; F32Precision::tf32
//   int8 int4 int8-block int4-block                    quantised evaluation
//   causal | causal_br | window-tl-16-0 | window-br-inf-4    bands: anchor, left, right
//   scale0.5                  an explicit scale
//   softcap30
//   mask-bool-b1qk-random     dtype, dimensions (1 = broadcast), contents (see MaskContents),
//                             and optionally a layout: odd, transposed, expanded, step2
//   fully_masked_row          the mask hides every third row
//   alibi-tl-h | alibi-br-bh  anchor and shape of the slopes
//   sinks | sinks-some        a sink for each head | for every other head, the rest -inf
//   dropout0.1 dropstreams dropdevice droporigin-100-200
//   varlen | varlen-i64       packed sequences, i32 or i64 cu_seqlens
//   seqused | seqused-i64     key lengths
//   paged16                   a paged KV cache and its page size
//   seg-2-3-1                 segments of q, k and v
//   outseg2                   segments of out and dout
//   qknorm | qknorm-plain     with or without weights
//   rope-il-half-s-all-f32    style (il, half), table (half, dup), its batch (s, 1s, bs), rotary
//                             dimensions and dtype
//   ropeoff-5-7 ropeoffs rope_q_only rope_k_only
//   bshd | packed_qkv | stride0_kv | padded | last2 | reversed | wide      memory layouts
//   unaligned                 tensors begin one element behind an aligned address
//   std64                     standard deviation of the logits over that of unit inputs
//   nan_v inf_k inf_dout      a non-finite value where a row sees it
//   nolse                     forward without LSE
//   dout0 | nodout            one value of dout expanded by strides of 0 | no dout
//   dlse dmask dsinks dnorm nodq nodk nodv             what backward is given and asked for
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <fovea/attention.h>
#include <fovea/status.h>

namespace fovea::cases {

enum class Layout : std::uint8_t {
  bhsd,        ///< contiguous in logical order
  bshd,        ///< [batch, seq, heads, dim]
  packed_qkv,  ///< one [batch, seq, 3, heads, dim]
  stride0_kv,  ///< one K/V head expanded to all by a stride of 0
  padded,      ///< gaps behind each row and each head
  last2,       ///< last stride 2
  reversed,    ///< negative stride along the sequence
  wide,        ///< heads more than 2^31 elements apart
};

enum class MaskContents : std::uint8_t {
  random,    ///< bool: most are true; additive: normal, with some -inf
  padding,   ///< each sequence sees a prefix of the keys
  gap,       ///< a prefix with a hole
  ones,      ///< all true; additive: all zero
  document,  ///< blocks along the diagonal
  finite,    ///< additive: normal, nothing hidden
  lowest,    ///< additive: some entries are the dtype's lowest finite value, and one whole row
  binary,    ///< additive: zeros and ones
};

enum class MaskLayout : std::uint8_t { dense, odd, transposed, expanded, step2 };

struct MaskCase {
  DType dtype = DType::none;
  std::string dims;  ///< e.g. "b1qk", "qk", "k"
  MaskContents contents = MaskContents::random;
  MaskLayout layout = MaskLayout::dense;
  bool fully_masked_row = false;
  friend bool operator==(const MaskCase&, const MaskCase&) = default;
};

struct DropoutCase {
  double probability = 0;
  bool streams = false, device_seed = false;
  std::int64_t row_origin = 0, column_origin = 0;
  friend bool operator==(const DropoutCase&, const DropoutCase&) = default;
};

enum class TableBatch : std::uint8_t { none, one, each };

struct RopeCase {
  bool enabled = false;
  RopeStyle style = RopeStyle::interleaved;
  RopeTable table = RopeTable::half;
  TableBatch batch = TableBatch::none;
  std::int64_t rotary_dim = 0;  ///< 0: all
  DType dtype = DType::f32;
  std::int64_t q_offset = 0, k_offset = 0;
  bool offsets_per_batch = false;
  bool q_only = false, k_only = false;
  friend bool operator==(const RopeCase&, const RopeCase&) = default;
};

enum class SinkKind : std::uint8_t { none, all, some };
enum class IndexKind : std::uint8_t { none, i32, i64 };
enum class NormKind : std::uint8_t { none, weights, plain };
enum class SlopeKind : std::uint8_t { none, per_head, per_batch };

/// All that defines a call, forward and backward, but for the values in the tensors.
struct Case {
  std::int64_t batch = 1, q_heads = 1, kv_heads = 1, q_len = 1, kv_len = 1;
  std::int64_t head_dim = 1, v_head_dim = 1;
  DType q_dtype = DType::f32, k_dtype = DType::f32, v_dtype = DType::f32;
  DType cast = DType::none;
  bool f32_out = false, f32_grads = false, tf32 = false;
  Quantization quantization;

  std::optional<Band> band;
  std::optional<double> scale;
  double softcap = 0;
  MaskCase mask;
  SlopeKind alibi = SlopeKind::none;
  Anchor alibi_anchor = Anchor::top_left;
  SinkKind sinks = SinkKind::none;
  DropoutCase dropout;

  IndexKind varlen = IndexKind::none, seqused = IndexKind::none;
  std::int64_t page_size = 0;  ///< 0: not paged
  std::int64_t q_segments = 1, k_segments = 1, v_segments = 1, out_segments = 1;
  NormKind qk_norm = NormKind::none;
  RopeCase rope;

  Layout layout = Layout::bhsd;
  bool unaligned = false;
  double logits_std = 1;
  bool nan_v = false, inf_k = false, inf_dout = false;
  bool no_lse = false, no_dout = false, expanded_dout = false;
  bool dlse = false, dmask = false, dsinks = false, dnorm = false;
  bool no_dq = false, no_dk = false, no_dv = false;

  /// dtype of the products' operands.
  [[nodiscard]] DType compute() const;
  /// Dtype of out and dout.
  [[nodiscard]] DType out_dtype() const { return f32_out ? DType::f32 : compute(); }

  friend bool operator==(const Case& a, const Case& b);
};

/// The canonical name.
std::string name_of(const Case& c);

/// Reads a name; tokens may come in any order, each once. Errors name the token.
Result<Case> parse_case(std::string_view name);

/// Whether the parameters go together, as the contract sees it.
Status check_case(const Case& c);

/// The case with q, k and v in another dtype, where there is such a case.
std::optional<Case> with_dtype(Case c, DType dtype);

/// Stable over platforms and releases.
std::uint64_t hash_of(std::string_view text);

}  // namespace fovea::cases
