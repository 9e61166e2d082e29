// The C ABI: growth of structs, errors as codes, and the same results as the C++ API.
#include <cstring>

#include <fovea/fovea_c.h>

#include "call.h"

namespace fovea::test {
namespace {

fovea_tensor tensor(const TensorView& view) {
  fovea_tensor t = {};
  t.data = const_cast<void*>(view.data);
  t.dtype = static_cast<std::int32_t>(view.dtype);
  t.rank = view.rank;
  std::memcpy(t.shape, view.shape.data(), sizeof(t.shape));
  std::memcpy(t.strides, view.strides.data(), sizeof(t.strides));
  return t;
}

fovea_operand operand(const TensorView& view) {
  fovea_operand o = {};
  o.count = 1;
  o.segments[0].tensor = tensor(view);
  return o;
}

/// The C form of Call.
struct CCall {
  Call call;
  fovea_params params = {};
  fovea_forward_args forward = {};
  fovea_backward_args backward = {};

  CCall() {
    const ForwardArgs f = call.forward_args();
    const BackwardArgs b = call.backward_args();
    params.struct_size = sizeof(params);
    params.q = operand(f.params.q.segments[0].tensor);
    params.k = operand(f.params.k.segments[0].tensor);
    params.v = operand(f.params.v.segments[0].tensor);
    forward.struct_size = sizeof(forward);
    forward.params = &params;
    forward.out = operand(f.out.segments[0].tensor);
    forward.lse = tensor(f.lse);
    backward.struct_size = sizeof(backward);
    backward.params = &params;
    backward.out = forward.out;
    backward.lse = forward.lse;
    backward.dout = operand(b.dout.segments[0].tensor);
    backward.dq = operand(b.dq.segments[0].tensor);
    backward.dk = operand(b.dk.segments[0].tensor);
    backward.dv = operand(b.dv.segments[0].tensor);
  }
};

TEST(CApi, GivesTheResultsOfTheCxxApi) {
  CCall c;
  ASSERT_EQ(fovea_forward(&c.forward, nullptr), FOVEA_OK) << fovea_last_error();
  ASSERT_EQ(fovea_backward(&c.backward, nullptr), FOVEA_OK) << fovea_last_error();
  Call cxx;
  ASSERT_TRUE(forward(cxx.forward_args()).ok());
  ASSERT_TRUE(backward(cxx.backward_args()).ok());
  EXPECT_EQ(c.call.out, cxx.out);
  EXPECT_EQ(c.call.lse, cxx.lse);
  EXPECT_EQ(c.call.dq, cxx.dq);
  EXPECT_EQ(c.call.dk, cxx.dk);
  EXPECT_EQ(c.call.dv, cxx.dv);
}

TEST(CApi, EveryParameterArrives) {
  // Each setting changes the result or is refused by name, so none can be dropped on the way.
  const auto refused = [](void (*change)(fovea_params&), const char* message) {
    CCall c;
    change(c.params);
    EXPECT_NE(fovea_forward(&c.forward, nullptr), FOVEA_OK) << message;
    EXPECT_NE(std::string(fovea_last_error()).find(message), std::string::npos)
        << fovea_last_error();
  };
  refused([](fovea_params& p) { p.has_scale = 1, p.scale = 1e300; }, "scale must be 0 or");
  refused([](fovea_params& p) { p.band_anchor = 7; }, "band anchor");
  refused([](fovea_params& p) { p.band_anchor = 1, p.band_left = -3; }, "left=-3");
  refused([](fovea_params& p) { p.band_anchor = 1, p.band_right = -4; }, "right=-4");
  refused([](fovea_params& p) { p.mask = p.q.segments[0].tensor; }, "mask must broadcast");
  refused([](fovea_params& p) { p.alibi_slopes = p.q.segments[0].tensor; }, "alibi slopes");
  refused([](fovea_params& p) { p.softcap = -1; }, "softcap");
  refused([](fovea_params& p) { p.sinks = p.q.segments[0].tensor; }, "sinks");
  refused([](fovea_params& p) { p.dropout_probability = 2; }, "dropout probability");
  refused([](fovea_params& p) { p.dropout_probability = .5, p.dropout_row_origin = -1; },
          "row_origin=-1");
  refused([](fovea_params& p) { p.dropout_probability = .5, p.dropout_column_origin = -2; },
          "column_origin=-2");
  refused(
      [](fovea_params& p) {
        p.dropout_probability = .5, p.dropout_seed_tensor = p.q.segments[0].tensor;
      },
      "dropout seed_tensor");
  refused(
      [](fovea_params& p) {
        p.dropout_probability = .5, p.dropout_offset_tensor = p.q.segments[0].tensor;
      },
      "dropout offset_tensor");
  refused(
      [](fovea_params& p) {
        p.dropout_probability = .5, p.dropout_streams = p.q.segments[0].tensor;
      },
      "dropout streams");
  refused([](fovea_params& p) { p.cu_seqlens_q = p.q.segments[0].tensor; }, "cu_seqlens_q");
  refused([](fovea_params& p) { p.cu_seqlens_k = p.q.segments[0].tensor; }, "cu_seqlens_k");
  refused([](fovea_params& p) { p.seqused_k = p.q.segments[0].tensor; }, "seqused_k");
  refused([](fovea_params& p) { p.block_table = p.q.segments[0].tensor; }, "paged KV cache");
  refused([](fovea_params& p) { p.rope_cos = p.q.segments[0].tensor; }, "sin is missing");
  refused([](fovea_params& p) { p.rope_sin = p.q.segments[0].tensor; }, "cos is missing");
  refused([](fovea_params& p) { p.rope_cos = p.rope_sin = p.q.segments[0].tensor; }, "rope cos");
  refused(
      [](fovea_params& p) { p.rope_cos = p.rope_sin = p.q.segments[0].tensor, p.rope_style = 9; },
      "rope style");
  refused(
      [](fovea_params& p) { p.rope_cos = p.rope_sin = p.q.segments[0].tensor, p.rope_table = 9; },
      "rope table");
  refused(
      [](fovea_params& p) {
        p.alibi_slopes = p.q.segments[0].tensor, p.alibi_anchor = 9;
        p.alibi_slopes.rank = 1, p.alibi_slopes.shape[0] = Call::kQHeads;
      },
      "alibi anchor");
  refused([](fovea_params& p) { p.qk_norm = 1, p.qk_norm_eps = -5; }, "eps must be");
  refused([](fovea_params& p) { p.q.segments[0].norm_weight = p.q.segments[0].tensor; },
          "q norm_weight");
  refused([](fovea_params& p) { p.cast_dtype = FOVEA_I32; }, "DTypePolicy::cast");
  refused([](fovea_params& p) { p.cast_dtype = -1; }, "DTypePolicy::cast");
  refused([](fovea_params& p) { p.quantized_dtype = 9; }, "quantisation dtype");
  refused([](fovea_params& p) { p.quantized_block = 9; }, "quantisation block");
  refused([](fovea_params& p) { p.quantized_dtype = 3; }, "quantisation");
}

TEST(CApi, AZeroedFieldIsItsDefault) {
  // QK-norm, RoPE and ALiBi with what their C++ structs begin with.
  std::vector<float> angles = Call::values(Call::kKvLen * Call::kDim / 2, 5);
  std::vector<float> slopes = Call::values(Call::kQHeads, 6);
  CCall c;
  // So small that the norm's eps counts.
  for (float& x : c.call.q) x *= 1e-3f;
  c.params.qk_norm = 1;
  c.params.rope_cos = c.params.rope_sin =
      tensor(TensorView(angles.data(), DType::f32, {Call::kKvLen, Call::kDim / 2}));
  c.params.alibi_slopes = tensor(TensorView(slopes.data(), DType::f32, {Call::kQHeads}));
  fovea_options options = {};
  options.struct_size = sizeof(options);
  options.kernel = "cpu.reference";
  ASSERT_EQ(fovea_forward(&c.forward, &options), FOVEA_OK) << fovea_last_error();
  Call cxx;
  cxx.q = c.call.q;
  ForwardArgs args = cxx.forward_args();
  args.params.qk_norm.enabled = true;
  args.params.rope.cos = args.params.rope.sin =
      TensorView(angles.data(), DType::f32, {Call::kKvLen, Call::kDim / 2});
  args.params.alibi.slopes = TensorView(slopes.data(), DType::f32, {Call::kQHeads});
  ASSERT_TRUE(forward(args, choose("cpu.reference")).ok());
  EXPECT_EQ(c.call.out, cxx.out);
  EXPECT_EQ(c.call.lse, cxx.lse);
}

TEST(CApi, StructsMayBeOlderOrNewer) {
  CCall c;
  c.params.struct_size = offsetof(fovea_params, rope_cos);  // before RoPE was there
  EXPECT_EQ(fovea_forward(&c.forward, nullptr), FOVEA_OK) << fovea_last_error();

  struct Newer {
    fovea_params params;
    std::int64_t unknown;
  } newer = {c.params, 0};
  newer.params.struct_size = sizeof(newer);
  c.forward.params = &newer.params;
  EXPECT_EQ(fovea_forward(&c.forward, nullptr), FOVEA_OK) << fovea_last_error();
  newer.unknown = 1;
  EXPECT_EQ(fovea_forward(&c.forward, nullptr), FOVEA_UNSUPPORTED);
  EXPECT_STREQ(fovea_last_error(), "[c] fovea_params uses fields that this version does not know");
  newer.params.struct_size = 0;
  EXPECT_EQ(fovea_forward(&c.forward, nullptr), FOVEA_INVALID);
  EXPECT_STREQ(fovea_last_error(),
               "[c] fovea_params.struct_size must be sizeof(fovea_params); got 0");
}

TEST(CApi, NullsAreErrors) {
  EXPECT_EQ(fovea_forward(nullptr, nullptr), FOVEA_INVALID);
  EXPECT_STREQ(fovea_last_error(), "[c] fovea_forward_args is null");
  CCall c;
  c.forward.params = nullptr;
  EXPECT_EQ(fovea_forward(&c.forward, nullptr), FOVEA_INVALID);
  EXPECT_STREQ(fovea_last_error(), "[c] fovea_params is null");
  EXPECT_EQ(fovea_plan_forward(&c.forward, nullptr, nullptr), FOVEA_INVALID);
  EXPECT_EQ(fovea_plan_run_forward(nullptr, &c.forward, nullptr), FOVEA_INVALID);
  EXPECT_EQ(fovea_job_create("x", nullptr), FOVEA_INVALID);
  EXPECT_EQ(fovea_job_flush(nullptr), FOVEA_INVALID);
  EXPECT_EQ(fovea_flush(), FOVEA_OK);
  EXPECT_EQ(fovea_merge_partials(nullptr, nullptr, 1, nullptr, nullptr, nullptr), FOVEA_INVALID);
  EXPECT_EQ(fovea_set_proof_level(3), FOVEA_INVALID);
  fovea_plan_destroy(nullptr);
  fovea_job_destroy(nullptr);
}

TEST(CApi, PlansJobsAndProof) {
  CCall c;
  std::vector<std::string> lines;
  ASSERT_EQ(fovea_set_proof_sink(
                [](const char* line, void* user) {
                  static_cast<std::vector<std::string>*>(user)->emplace_back(line);
                },
                &lines),
            FOVEA_OK);
  ASSERT_EQ(fovea_set_proof_level(FOVEA_PROOF_PROOF), FOVEA_OK);
  fovea_job* job = nullptr;
  ASSERT_EQ(fovea_job_create("c", &job), FOVEA_OK);
  fovea_options options = {};
  options.struct_size = sizeof(options);
  options.job = job;
  options.num_threads = 1;
  fovea_plan* plan = nullptr;
  ASSERT_EQ(fovea_plan_forward(&c.forward, &options, &plan), FOVEA_OK) << fovea_last_error();
  EXPECT_EQ(fovea_plan_run_forward(plan, &c.forward, &options), FOVEA_OK) << fovea_last_error();
  EXPECT_EQ(fovea_plan_run_forward(plan, &c.forward, &options), FOVEA_OK);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find(std::string("ran ") + fovea_plan_kernel(plan)), std::string::npos);
  std::string report(fovea_plan_report_json(plan, nullptr, 0), '\0');
  EXPECT_EQ(fovea_plan_report_json(plan, report.data(), report.size()), report.size());
  EXPECT_EQ(report.rfind(std::string("{\"kernel\":\"") + fovea_plan_kernel(plan) + "\"", 0), 0u);
  EXPECT_NE(report.find("\"tuned\":{\"measured\":false,"), std::string::npos) << report;
  EXPECT_EQ(fovea_plan_report_json(nullptr, nullptr, 0), sizeof("{}"));
  EXPECT_EQ(fovea_job_flush(job), FOVEA_OK);
  fovea_plan_destroy(plan);
  fovea_job_destroy(job);
  fovea_set_proof_level(FOVEA_PROOF_OFF);
  fovea_set_proof_sink(nullptr, nullptr);
}

TEST(CApi, CallersPoolIsUsed) {
  CCall c;
  struct Threads {
    int tasks = 0;
  } threads;
  fovea_thread_pool pool = {};
  pool.struct_size = sizeof(pool);
  pool.threads = 3;
  pool.self = &threads;
  pool.run = [](void* self, void (*task)(void*, int), void* arg) {
    for (int worker = 0; worker < 3; ++worker) {
      ++static_cast<Threads*>(self)->tasks;
      task(arg, worker);
    }
  };
  fovea_options options = {};
  options.struct_size = sizeof(options);
  options.pool = &pool;
  ASSERT_EQ(fovea_forward(&c.forward, &options), FOVEA_OK) << fovea_last_error();
  EXPECT_GE(threads.tasks, 3);
  Call cxx;
  ASSERT_TRUE(forward(cxx.forward_args()).ok());
  EXPECT_EQ(c.call.out, cxx.out);
}

TEST(CApi, TextFunctionsTellTheirLength) {
  const std::size_t needed = fovea_info_json(nullptr, 0);
  ASSERT_GT(needed, 100u);
  std::string text(needed, 'x');
  EXPECT_EQ(fovea_info_json(text.data(), text.size()), needed);
  EXPECT_EQ(std::strlen(text.c_str()), needed - 1);
  char small[8];
  fovea_counters_json(small, sizeof(small));
  EXPECT_EQ(std::strlen(small), 7u);
  CCall c;
  std::size_t bytes = 0;
  char reasons[4096];
  ASSERT_EQ(fovea_why_not_forward(&c.forward, nullptr, reasons, sizeof(reasons), &bytes), FOVEA_OK);
  EXPECT_NE(std::string(reasons).find("cpu.reference.forward: serves only when chosen by name"),
            std::string::npos)
      << reasons;
  EXPECT_EQ(bytes, std::strlen(reasons) + 1);
}

}  // namespace
}  // namespace fovea::test
