// What a call costs beside its arithmetic: a tiny call through a plan made anew, through the cache
// of plans, and through a plan that is kept; and the proof and counters that go with it.
//
//   fovea_bench_overhead --benchmark_min_time=0.5
#include <benchmark/benchmark.h>

#include <fovea/fovea.h>

#include "cases/outputs.h"

namespace fovea {
namespace {

/// One query, one key, one element: nothing but overhead.
struct TinyCall {
  TinyCall()
      : inputs(cases::make_inputs(cases::parse_case("b1_hq1_hkv1_q1_k1_d1_f32").value(), 0)),
        outputs(cases::make_forward_outputs(*inputs, cases::Width::as_asked)),
        args(cases::forward_args(*inputs, outputs)) {
    options.num_threads = 1;
  }

  std::unique_ptr<cases::Inputs> inputs;
  cases::Outputs outputs;
  ForwardArgs args;
  PlanOptions options;
};

void plan_anew(benchmark::State& state) {
  const TinyCall call;
  for (auto _ : state) {
    Result<Plan> plan = Plan::make(call.args, call.options);
    throw_if_error(plan.status());
    benchmark::DoNotOptimize(plan);
  }
}
BENCHMARK(plan_anew);

void run_a_plan(benchmark::State& state) {
  const TinyCall call;
  const Plan plan = Plan::make(call.args, call.options).value();
  for (auto _ : state) throw_if_error(plan.run(call.args));
}
BENCHMARK(run_a_plan);

void run_a_plan_with_workspace(benchmark::State& state) {
  const TinyCall call;
  const Plan plan = Plan::make(call.args, call.options).value();
  const cases::Buffer workspace(plan.workspace_bytes());
  RunOptions run;
  run.workspace = workspace.data();
  run.workspace_bytes = workspace.bytes();
  for (auto _ : state) throw_if_error(plan.run(call.args, run));
}
BENCHMARK(run_a_plan_with_workspace);

void forward_through_the_cache(benchmark::State& state) {
  const TinyCall call;
  CallOptions options;
  options.plan = call.options;
  for (auto _ : state) throw_if_error(forward(call.args, options));
}
BENCHMARK(forward_through_the_cache);

void forward_with_a_job(benchmark::State& state) {
  const TinyCall call;
  Job job("overhead");
  CallOptions options;
  options.plan = call.options;
  options.run.job = &job;
  for (auto _ : state) throw_if_error(forward(call.args, options));
}
BENCHMARK(forward_with_a_job);

/// The call on all threads: what waking and joining them costs.
void run_on_all_threads(benchmark::State& state) {
  TinyCall call;
  call.options.num_threads = 0;
  const Plan plan = Plan::make(call.args, call.options).value();
  for (auto _ : state) throw_if_error(plan.run(call.args));
}
BENCHMARK(run_on_all_threads);

void read_counters(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(counters());
}
BENCHMARK(read_counters);

}  // namespace
}  // namespace fovea

BENCHMARK_MAIN();
