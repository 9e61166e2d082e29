// Every way of giving a wrong call, and the message it gets.
#include <cmath>
#include <limits>

#include "call.h"

namespace fovea::test {
namespace {

/// One way to spoil a forward call, and the message expected for it.
struct Spoiled {
  const char* name;
  void (*spoil)(ForwardArgs& args);
  const char* message;
};

float one_value = 0;

unsigned char misaligned_bytes[8192];

TensorView zeros(DType dtype, std::initializer_list<std::int64_t> shape) {
  static double memory[4096] = {};
  return {memory, dtype, shape};
}

const Spoiled kSpoiled[] = {
    {"q_missing", [](ForwardArgs& a) { a.params.q = Operand(); }, "[forward] q is missing"},
    {"k_missing", [](ForwardArgs& a) { a.params.k = Operand(); }, "[forward] k is missing"},
    {"v_missing", [](ForwardArgs& a) { a.params.v = Operand(); }, "[forward] v is missing"},
    {"out_missing", [](ForwardArgs& a) { a.out = MutableOperand(); }, "[forward] out is missing"},
    {"null_q", [](ForwardArgs& a) { a.params.q.segments[0].tensor.data = nullptr; },
     "[forward] q is null but has shape [2, 4, 5, 8]"},
    {"null_out", [](ForwardArgs& a) { a.out.segments[0].tensor.data = nullptr; },
     "[forward] out is null but has shape [2, 4, 5, 8]"},
    {"rank",
     [](ForwardArgs& a) {
       a.params.q = zeros(DType::f32, {4, 5, 8});
     },
     "[forward] q must have 4 dimensions; got 3"},
    {"negative_size", [](ForwardArgs& a) { a.params.k.segments[0].tensor.shape[2] = -7; },
     "[forward] k has a negative size; got shape [2, 2, -7, 8]"},
    {"overflowing_shape",
     [](ForwardArgs& a) { a.params.q.segments[0].tensor.shape[0] = INT64_MAX / 2; },
     "[forward] q is larger than 63 bits can address; got shape [4611686018427387903, 4, 5, 8]"},
    {"overflowing_stride",
     [](ForwardArgs& a) { a.params.v.segments[0].tensor.strides[0] = INT64_MAX; },
     "[forward] v is larger than 63 bits can address; got shape [2, 2, 7, 8]"},
    {"heads_do_not_divide",
     [](ForwardArgs& a) {
       a.params.k = zeros(DType::f32, {2, 3, 7, 8});
       a.params.v = zeros(DType::f32, {2, 3, 7, 8});
     },
     "[forward] kv_heads must divide q_heads; got q_heads=4, kv_heads=3"},
    {"kv_heads_differ",
     [](ForwardArgs& a) {
       a.params.v = zeros(DType::f32, {2, 1, 7, 8});
     },
     "[forward] k and v must have the same heads; got k=2, v=1"},
    {"no_heads",
     [](ForwardArgs& a) {
       a.params.k = zeros(DType::f32, {2, 0, 7, 8});
       a.params.v = zeros(DType::f32, {2, 0, 7, 8});
     },
     "[forward] heads must be positive; got q_heads=4, kv_heads=0"},
    {"head_dim_differs",
     [](ForwardArgs& a) {
       a.params.k = zeros(DType::f32, {2, 2, 7, 6});
     },
     "[forward] q and k must have the same head_dim; got q=8, k=6"},
    {"kv_len_differs",
     [](ForwardArgs& a) {
       a.params.v = zeros(DType::f32, {2, 2, 6, 8});
     },
     "[forward] k and v must have the same kv_len; got k=7, v=6"},
    {"batch_differs",
     [](ForwardArgs& a) {
       a.params.k = zeros(DType::f32, {1, 2, 7, 8});
       a.params.v = zeros(DType::f32, {1, 2, 7, 8});
     },
     "[forward] q, k and v must have the same batch; got q=2, k=1, v=1"},
    {"head_dim_limit",
     [](ForwardArgs& a) {
       a.params.q = zeros(DType::f32, {1, 1, 1, 513});
       a.params.k = zeros(DType::f32, {1, 1, 1, 513});
       a.params.v = zeros(DType::f32, {1, 1, 1, 8});
     },
     "[forward] head_dim must be 1 to 512; got 513"},
    {"integer_q", [](ForwardArgs& a) { a.params.q.segments[0].tensor.dtype = DType::i32; },
     "[forward] q must be f32, f16, bf16 or f64; got i32"},
    {"mixed_dtypes",
     [](ForwardArgs& a) {
       a.params.v = zeros(DType::bf16, {2, 2, 7, 8});
     },
     "[forward] q, k and v must have one dtype (or DTypePolicy::cast); got q=f32, k=f32, v=bf16"},
    {"mixed_with_f64_under_cast",
     [](ForwardArgs& a) {
       a.params.v = zeros(DType::f64, {2, 2, 7, 8});
       a.params.dtype_policy = DTypePolicy::cast(DType::bf16);
     },
     "[forward] q, k and v must have one dtype where one is f64, which is never cast; got q=f32, "
     "k=f32, v=f64"},
    {"out_dtype", [](ForwardArgs& a) { a.out.segments[0].tensor.dtype = DType::bf16; },
     "[forward] out must be in the compute dtype f32 or in f32; got bf16"},
    {"other_device",
     [](ForwardArgs& a) {
       a.params.k.segments[0].tensor.device = {DeviceType::cuda, 1};
     },
     "[forward] all tensors must be on one device; got q on cpu:0, k on cuda:1"},
    {"out_shape", [](ForwardArgs& a) { a.out.segments[0].tensor.shape[2] = 4; },
     "[forward] out must have shape [2, 4, 5, 8]; got [2, 4, 4, 8]"},
    {"lse_dtype", [](ForwardArgs& a) { a.lse.dtype = DType::bf16; },
     "[forward] lse must be f32 or f64; got bf16"},
    {"expanded_out", [](ForwardArgs& a) { a.out.segments[0].tensor.strides[1] = 0; },
     "[forward] out would be written more than once in one place; got shape [2, 4, 5, 8] and "
     "strides [160, 0, 8, 1]"},
    {"out_is_q",
     [](ForwardArgs& a) {
       a.out.segments[0].tensor.data = const_cast<void*>(a.params.q.segments[0].tensor.data);
     },
     "[forward] output out overlaps q"},
    {"lse_inside_out", [](ForwardArgs& a) { a.lse.data = a.out.segments[0].tensor.data; },
     "[forward] output out overlaps lse"},
    {"scale_nan", [](ForwardArgs& a) { a.params.scale = std::nan(""); },
     "[forward] scale must be 0 or have a magnitude from 1e-30 to 1e+30; got nan"},
    {"scale_inf", [](ForwardArgs& a) { a.params.scale = 1e300; },
     "[forward] scale must be 0 or have a magnitude from 1e-30 to 1e+30; got 1e+300"},
    {"scale_tiny", [](ForwardArgs& a) { a.params.scale = -1e-60; },
     "[forward] scale must be 0 or have a magnitude from 1e-30 to 1e+30; got -1e-60"},
    {"softcap_negative", [](ForwardArgs& a) { a.params.softcap = -1; },
     "[forward] softcap must be finite and >= 0; got -1"},
    {"band_negative", [](ForwardArgs& a) { a.params.band = Band::window(Anchor::top_left, -1, 0); },
     "[forward] band sides must be >= 0 or kUnbounded; got left=-1, right=0"},
    {"band_anchor",
     [](ForwardArgs& a) {
       a.params.band = Band{static_cast<Anchor>(0), 1, 1};
     },
     "[forward] band anchor must be top_left or bottom_right; got 0"},
    {"mask_dtype",
     [](ForwardArgs& a) {
       a.params.mask = zeros(DType::i32, {5, 7});
     },
     "[forward] mask must be bool (true = attend) or a float dtype (additive); got i32"},
    {"mask_shape",
     [](ForwardArgs& a) {
       a.params.mask = zeros(DType::f32, {5, 6});
     },
     "[forward] mask must broadcast to [2, 4, 5, 7]; got [5, 6]"},
    {"alibi_anchor_differs",
     [](ForwardArgs& a) {
       a.params.band = Band::causal(Anchor::top_left);
       a.params.alibi = {zeros(DType::f32, {4}), Anchor::bottom_right};
     },
     "[forward] alibi anchor must equal the band's anchor"},
    {"sinks_shape", [](ForwardArgs& a) { a.params.sinks = zeros(DType::f32, {2}); },
     "[forward] sinks must have shape [4]; got [2]"},
    {"dropout_probability", [](ForwardArgs& a) { a.params.dropout.probability = 1.5; },
     "[forward] dropout probability must be in [0, 1]; got 1.5"},
    {"dropout_nan", [](ForwardArgs& a) { a.params.dropout.probability = std::nan(""); },
     "[forward] dropout probability must be in [0, 1]; got nan"},
    {"dropout_origin",
     [](ForwardArgs& a) {
       a.params.dropout.probability = 0.5;
       a.params.dropout.row_origin = std::int64_t{1} << 33;
     },
     "[forward] dropout rows must lie in [0, 2^33); got row_origin=8589934592, q_len=5"},
    {"norm_weight_without_norm",
     [](ForwardArgs& a) { a.params.q.segments[0].norm_weight = zeros(DType::f32, {8}); },
     "[forward] q norm_weight is given without QkNorm::enabled (or for v)"},
    {"qk_norm_eps",
     [](ForwardArgs& a) {
       a.params.qk_norm = {true, -1};
     },
     "[forward] QkNorm eps must be finite and >= 0; got -1"},
    {"rope_without_sin",
     [](ForwardArgs& a) {
       a.params.rope.cos = zeros(DType::f32, {7, 4});
     },
     "[forward] rope needs both cos and sin; sin is missing"},
    {"rope_odd",
     [](ForwardArgs& a) {
       a.params.rope.cos = a.params.rope.sin = zeros(DType::f32, {7, 4});
       a.params.rope.rotary_dim = 7;
     },
     "[forward] rotary_dim must be even and at most head_dim=8; got 7"},
    {"rope_columns",
     [](ForwardArgs& a) {
       a.params.rope.cos = a.params.rope.sin = zeros(DType::f32, {7, 8});
     },
     "[forward] rope cos must have 4 columns for rotary_dim=8 and a half table; got [7, 8]"},
    {"rope_rows",
     [](ForwardArgs& a) {
       a.params.rope.cos = a.params.rope.sin = zeros(DType::f32, {6, 4});
     },
     "[forward] rope tables have 6 rows; k needs rows 0 to 6"},
    {"segments_disagree",
     [](ForwardArgs& a) {
       a.params.q.add(zeros(DType::f32, {2, 3, 1, 8}));
     },
     "[forward] q segments must agree in batch, heads and head_dim; got [2, 4, 5, 8] and [2, 3, 1, "
     "8]"},
    {"too_many_segments",
     [](ForwardArgs& a) {
       for (int n = 0; n < 4; ++n) a.params.q.add(zeros(DType::f32, {2, 4, 1, 8}));
     },
     "[forward] q must have 1 to 4 segments; got 5"},
    {"out_segments_do_not_add_up", [](ForwardArgs& a) { a.out.add(a.out.segments[0].tensor); },
     "[forward] out segments must add up to q_len=5; got 10"},
    {"cu_seqlens_alone",
     [](ForwardArgs& a) { a.params.varlen.cu_seqlens_q = zeros(DType::i32, {3}); },
     "[forward] cu_seqlens_q is given without cu_seqlens_k"},
    {"seqused_dtype", [](ForwardArgs& a) { a.params.seqused_k = zeros(DType::f32, {2}); },
     "[forward] seqused_k must be i32 or i64; got f32"},
    {"paged_without_lengths",
     [](ForwardArgs& a) {
       a.params.paged.block_table = zeros(DType::i32, {2, 1});
     },
     "[forward] a paged KV cache needs seqused_k for its lengths"},
    {"rank_of_a_view_that_is_not_used",
     [](ForwardArgs& a) {
       a.params.dropout.seed_tensor = zeros(DType::i64, {1});
       a.params.dropout.seed_tensor.rank = 100;
     },
     "[forward] dropout seed_tensor must have 0 to 5 dimensions; got 100"},
    {"shape_of_a_view_that_is_not_used",
     [](ForwardArgs& a) {
       a.params.rope.q_offsets = zeros(DType::i64, {INT64_MAX, INT64_MAX});
     },
     "[forward] rope q_offsets is larger than 63 bits can address; got shape "
     "[9223372036854775807, 9223372036854775807]"},
    {"dropout_streams_dtype",
     [](ForwardArgs& a) {
       a.params.dropout.probability = 0.5;
       a.params.dropout.streams = zeros(DType::f32, {2, 4});
     },
     "[forward] dropout streams must be i32 or i64; got f32"},
    {"cu_seqlens_rank",
     [](ForwardArgs& a) {
       a.params.q = zeros(DType::f32, {5, 4, 8});
       a.params.k = a.params.v = zeros(DType::f32, {7, 2, 8});
       a.params.varlen.cu_seqlens_q = a.params.varlen.cu_seqlens_k = zeros(DType::i32, {3, 1});
     },
     "[forward] cu_seqlens_q must have 1 dimensions; got 2"},
    {"misaligned",
     [](ForwardArgs& a) {
       // An odd address; its low digits are what the message must end with.
       auto base = reinterpret_cast<std::uintptr_t>(misaligned_bytes);
       a.params.q.segments[0].tensor.data = reinterpret_cast<void*>((base | 3) - 2);
     },
     nullptr},
};

class Refusals : public testing::TestWithParam<Spoiled> {};

TEST_P(Refusals, HasItsMessage) {
  Call call;
  ForwardArgs args = call.forward_args();
  GetParam().spoil(args);
  const Status status = forward(args);
  EXPECT_EQ(status.code(), StatusCode::invalid);
  if (GetParam().message != nullptr)
    EXPECT_EQ(status.message(), GetParam().message);
  else
    EXPECT_NE(status.message().find("is not aligned to its dtype f32"), std::string::npos)
        << status.message();
}

INSTANTIATE_TEST_SUITE_P(Forward, Refusals, testing::ValuesIn(kSpoiled),
                         [](const auto& spoiled) { return std::string(spoiled.param.name); });

TEST(ValidCalls, TheCallThatIsSpoiledAboveIsValid) {
  Call call;
  EXPECT_TRUE(forward(call.forward_args()).ok());
  EXPECT_TRUE(backward(call.backward_args()).ok());
}

TEST(BackwardRefusals, Messages) {
  const auto expect = [](void (*spoil)(BackwardArgs&), const char* message) {
    Call call;
    BackwardArgs args = call.backward_args();
    spoil(args);
    expect_error(backward(args), StatusCode::invalid, message);
  };
  expect([](BackwardArgs& a) { a.out = Operand(); },
         "[backward] out is missing: backward needs forward's result");
  expect([](BackwardArgs& a) { a.lse = {}; },
         "[backward] lse is missing: backward needs forward's LSE");
  expect([](BackwardArgs& a) { a.dout = Operand(); }, "[backward] dout is missing");
  expect([](BackwardArgs& a) { a.dq = a.dk = a.dv = MutableOperand(); },
         "[backward] no gradient is asked for");
  expect([](BackwardArgs& a) { a.dk.segments[0].tensor.shape[2] = 5; },
         "[backward] dk must have its input's shape [2, 2, 7, 8]; got [2, 2, 5, 8]");
  expect([](BackwardArgs& a) { a.dq.segments[0].tensor.dtype = DType::bf16; },
         "[backward] dq must be in its input's dtype f32 or in f32; got bf16");
  expect([](BackwardArgs& a) { a.dk.segments[0].tensor.data = a.dv.segments[0].tensor.data; },
         "[backward] output dk overlaps dv");
  expect([](BackwardArgs& a) { a.dsinks = MutableTensorView(&one_value, DType::f32, {4}); },
         "[backward] dsinks is asked for, but there are no sinks");
  expect(
      [](BackwardArgs& a) {
        a.dmask = MutableTensorView(&one_value, DType::f32, {5, 7});
      },
      "[backward] dmask needs an additive mask; got none");
  expect(
      [](BackwardArgs& a) {
        a.dq.segments[0].norm_weight = MutableTensorView(&one_value, DType::f32, {8});
      },
      "[backward] q norm_weight gradient is asked for, but there is no weight");
}

TEST(BackwardRefusals, PagedCacheHasNoBackward) {
  Call call;
  BackwardArgs args = call.backward_args();
  args.params.paged = {zeros(DType::i32, {2, 1}), 1};
  args.params.seqused_k = zeros(DType::i32, {2});
  expect_error(backward(args), StatusCode::unsupported,
               "[backward] a paged KV cache has no backward");
}

TEST(Devices, AbsentBackendsSayWhy) {
  Call call;
  ForwardArgs args = call.forward_args();
  const Device metal{DeviceType::metal, 0};
  for (Operand* operand : {&args.params.q, &args.params.k, &args.params.v})
    operand->segments[0].tensor.device = metal;
  args.out.segments[0].tensor.device = args.lse.device = metal;
  expect_error(forward(args), StatusCode::unsupported,
               "[forward] device metal:0 cannot be used: the Metal backend is not part of this "
               "version");
}

}  // namespace
}  // namespace fovea::test
