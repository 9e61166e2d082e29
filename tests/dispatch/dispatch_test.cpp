// Selection, fallback, strictness, self-check, proof and counters, with kernels made to misbehave.
#include <cstdlib>
#include <thread>

#include "../api/call.h"
#include "fake_kernels.h"

namespace fovea::test {
namespace {

class Dispatch : public testing::Test {
 protected:
  void SetUp() override {
    behaviour() = Behaviour{};
    lines.clear();
    reset_counters();
    release_cached_memory();
    set_proof_level(ProofLevel::proof);
    set_proof_sink([this](std::string_view line) { lines.emplace_back(line); });
  }
  void TearDown() override {
    set_proof_sink({});
    set_proof_level(ProofLevel::off);
    for (const char* name : {"FOVEA_KERNEL", "FOVEA_BACKEND"}) unsetenv(name);
  }

  Status run(const CallOptions& options, Report* report = nullptr) {
    return forward(call.forward_args(), options, report);
  }
  static CallOptions in_job(Job& job) {
    CallOptions options;
    options.run.job = &job;
    return options;
  }
  std::uint64_t completed(const std::string& kernel) const {
    for (const KernelCount& k : counters().kernels)
      if (k.kernel == kernel) return k.completed;
    return 0;
  }

  Call call;
  std::vector<std::string> lines;
};

TEST_F(Dispatch, BestServesAndIsProvedOncePerJob) {
  Job job("first");
  Report report;
  for (int n = 0; n < 3; ++n) ASSERT_TRUE(run(in_job(job), &report).ok());
  EXPECT_EQ(report.kernel, "fake.best.forward");
  EXPECT_FALSE(report.fallback);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].rfind("[fovea] ran fake.best.forward d8 f32 ver=", 0), 0u) << lines[0];
  EXPECT_NE(lines[0].find(" file=" + library_path() + " device="), std::string::npos) << lines[0];
  EXPECT_EQ(job.kernels_ran(), std::vector<std::string>{"fake.best.forward"});
  EXPECT_EQ(completed("fake.best.forward"), 3u);

  Job second("a new job re-arms the line");
  ASSERT_TRUE(run(in_job(second)).ok());
  EXPECT_EQ(lines.size(), 2u);
}

TEST_F(Dispatch, LevelsOffAndAll) {
  Job job("levels");
  set_proof_level(ProofLevel::off);
  ASSERT_TRUE(run(in_job(job)).ok());
  EXPECT_TRUE(lines.empty());
  set_proof_level(ProofLevel::all);
  ASSERT_TRUE(run(in_job(job)).ok());
  ASSERT_TRUE(run(in_job(job)).ok());
  EXPECT_EQ(lines.size(), 2u);
}

TEST_F(Dispatch, RefusalFallsBackWithItsReason) {
  behaviour().best_refuses = Refusal::because(RefusalCode::head_dim, 8, 4);
  Job job("fallback");
  Report report;
  ASSERT_TRUE(run(in_job(job), &report).ok());
  EXPECT_EQ(report.kernel, "fake.plain.forward");
  EXPECT_TRUE(report.fallback);
  ASSERT_EQ(report.passed_over.size(), 2u);
  EXPECT_EQ(report.passed_over[0].reason, "head_dim 8 > 4");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0],
            "[fovea] NOT used fake.best.forward — head_dim 8 > 4; served by fake.plain.forward");
  EXPECT_EQ(lines[1].rfind("[fovea] ran fake.plain.forward", 0), 0u);
  EXPECT_EQ(counters().fallbacks, 1u);
  EXPECT_EQ(completed("fake.best.forward"), 0u);
}

TEST_F(Dispatch, AKernelThatIsSlowHereServesByItsNameOnly) {
  behaviour().best_steps_back = true;
  Report report;
  ASSERT_TRUE(run({}, &report).ok());
  EXPECT_EQ(report.kernel, "fake.plain.forward");
  ASSERT_EQ(report.passed_over.size(), 2u);
  EXPECT_EQ(report.passed_over[0].reason, "slow on this machine");
  ASSERT_TRUE(run(choose("fake.best.forward"), &report).ok());
  EXPECT_EQ(report.kernel, "fake.best.forward");
}

TEST_F(Dispatch, AFallbackThatFailsHasServedNobody) {
  behaviour().best_refuses = Refusal::because(RefusalCode::head_dim, 8, 4);
  ASSERT_TRUE(run({}).ok());  // passes the self-check first
  lines.clear();
  behaviour().best_fails = true;
  Job job("the fallback fails");
  EXPECT_EQ(run(in_job(job)).code(), StatusCode::device);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0],
            "[fovea] NOT used fake.best.forward — head_dim 8 > 4; nothing served instead");
  EXPECT_EQ(lines[1],
            "[fovea] NOT used fake.plain.forward — [fake] the device caught fire; nothing served "
            "instead");
}

TEST_F(Dispatch, SelfCheckKeepsAWrongKernelOut) {
  behaviour().best_refuses = Refusal::because(RefusalCode::head_dim, 8, 4);
  Report report;
  ASSERT_TRUE(run({}, &report).ok());
  ASSERT_EQ(report.passed_over.size(), 2u);
  EXPECT_EQ(report.passed_over[1].kernel, "fake.wrong.forward");
  EXPECT_EQ(report.passed_over[1].reason.rfind("failed its self-check: error ", 0), 0u)
      << report.passed_over[1].reason;
  for (const KernelInfo& info : kernels())
    if (info.id == "fake.wrong.forward") EXPECT_EQ(info.self_check, SelfCheck::failed);
  const Status status = run(choose("fake.wrong.forward"));
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("failed its self-check"), std::string::npos) << status.message();
}

TEST_F(Dispatch, SelfCheckCanBeTurnedOff) {
  CallOptions options = choose("fake.wrong.forward");
  options.plan.self_check = false;
  EXPECT_TRUE(run(options).ok());
}

TEST_F(Dispatch, StrictRefusesFallback) {
  behaviour().best_refuses = Refusal::because(RefusalCode::head_dim, 8, 4);
  CallOptions options;
  options.plan.choice.strict = true;
  expect_error(run(options), StatusCode::unsupported,
               "[forward] strict: fake.best.forward — head_dim 8 > 4; fake.plain.forward would "
               "serve instead");
  EXPECT_TRUE(lines.empty());
}

TEST_F(Dispatch, AnUnavailableKernelIsNoFallback) {
  behaviour().best_is_unavailable = true;
  CallOptions options;
  options.plan.choice.kernel = "fake.plain.forward";
  options.plan.choice.strict = true;
  EXPECT_TRUE(run(options).ok());
}

TEST_F(Dispatch, ExplicitChoiceThatCannotServeIsAnError) {
  behaviour().best_refuses =
      Refusal::because(RefusalCode::feature, static_cast<std::int64_t>(Feature::dropout));
  expect_error(run(choose("fake.best.forward")), StatusCode::unsupported,
               "[forward] no kernel serves this call under kernel \"fake.best.forward\" from the "
               "call's choice: fake.best.forward — does not serve dropout");
}

TEST_F(Dispatch, AChoiceOfOneDirectionSaysThatItLacksTheOther) {
  setenv("FOVEA_KERNEL", "fake.plain.forward", 1);
  EXPECT_TRUE(run({}).ok());
  expect_error(backward(call.backward_args()), StatusCode::unsupported,
               "[backward] no kernel serves this call under kernel \"fake.plain.forward\" from "
               "FOVEA_KERNEL: it names no backward kernel for cpu");
}

TEST_F(Dispatch, UnknownNamesListTheKnown) {
  expect_error(run(choose("fake.bset.forward")), StatusCode::invalid,
               "[forward] unknown kernel \"fake.bset.forward\" from the call's choice; known: "
               "fake.best.forward, fake.wrong.forward, fake.plain.forward, cpu.reference.forward, "
               "cpu.reference.backward, fake.queued.forward, fake.queued.backward");
  CallOptions options;
  options.plan.choice.backend = "flesh";
  const Status status = run(options);
  EXPECT_EQ(status.code(), StatusCode::invalid);
  EXPECT_EQ(status.message().rfind("[forward] unknown backend \"flesh\"", 0), 0u);
}

TEST_F(Dispatch, TheOracleServesOnlyWhenAsked) {
  Report report;
  ASSERT_TRUE(run(choose("cpu.reference"), &report).ok());
  EXPECT_EQ(report.kernel, "cpu.reference.forward");
  const Status status = backward(call.backward_args());
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.message(),
            "[backward] no kernel serves this call: cpu.reference.backward — serves only when "
            "chosen by name");
}

TEST_F(Dispatch, TheCallBeatsTheEnvironment) {
  setenv("FOVEA_KERNEL", "fake.plain", 1);
  Report report;
  ASSERT_TRUE(run({}, &report).ok());
  EXPECT_EQ(report.kernel, "fake.plain.forward");
  ASSERT_TRUE(run(choose("fake.best.forward"), &report).ok());
  EXPECT_EQ(report.kernel, "fake.best.forward");
  unsetenv("FOVEA_KERNEL");
  setenv("FOVEA_BACKEND", "reference", 1);
  ASSERT_TRUE(run({}, &report).ok());
  EXPECT_EQ(report.kernel, "cpu.reference.forward");
  setenv("FOVEA_BACKEND", "nonsense", 1);
  const Status status = run({});
  EXPECT_NE(status.message().find("from FOVEA_BACKEND"), std::string::npos) << status.message();
}

TEST_F(Dispatch, AFailedRunIsNeverProved) {
  ASSERT_TRUE(run({}).ok());  // passes the self-check first
  lines.clear();
  reset_counters();
  behaviour().best_fails = true;
  Job job("fails");
  expect_error(run(in_job(job)), StatusCode::device, "[fake] the device caught fire");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0],
            "[fovea] NOT used fake.best.forward — [fake] the device caught fire; nothing served "
            "instead");
  EXPECT_TRUE(job.kernels_ran().empty());
  ASSERT_EQ(counters().kernels.size(), 1u);
  EXPECT_EQ(counters().kernels[0].launched, 1u);
  EXPECT_EQ(counters().kernels[0].completed, 0u);
  EXPECT_EQ(counters().kernels[0].failed, 1u);
}

TEST_F(Dispatch, WorkspaceIsCheckedAndUsed) {
  behaviour().workspace_bytes = 1000;
  const ForwardArgs args = call.forward_args();
  Result<Plan> plan = Plan::make(args);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->workspace_bytes(), 1000u);
  alignas(64) static std::byte memory[1064];
  RunOptions options;
  options.workspace = memory;
  options.workspace_bytes = 999;
  expect_error(plan->run(args, options), StatusCode::out_of_memory,
               "[forward] workspace must have at least 1000 bytes; got 999");
  options.workspace_bytes = 1000;
  ASSERT_TRUE(plan->run(args, options).ok());
  EXPECT_EQ(behaviour().seen_workspace, memory);
  options.workspace = memory + 1;
  EXPECT_EQ(plan->run(args, options).code(), StatusCode::invalid);
}

TEST_F(Dispatch, ImpossibleWorkspaceIsOutOfMemory) {
  ASSERT_TRUE(run({}).ok());
  release_cached_memory();
  behaviour().workspace_bytes = std::size_t{1} << 62;
  CallOptions options;
  options.plan.self_check = false;
  EXPECT_EQ(run(options).code(), StatusCode::out_of_memory);
}

TEST_F(Dispatch, PlansAcceptOtherPointersAndNothingElse) {
  ForwardArgs args = call.forward_args();
  Result<Plan> plan = Plan::make(args);
  ASSERT_TRUE(plan.ok());
  Call other;
  EXPECT_TRUE(plan->run(other.forward_args()).ok());
  args.params.scale = 2.0;
  expect_error(plan->run(args), StatusCode::invalid,
               "[forward] scale differs from what the plan was made for; make a new plan");
  args = call.forward_args();
  args.params.k.segments[0].tensor.strides[2] = 16;
  args.params.k.segments[0].tensor.shape[2] = 3;
  expect_error(plan->run(args), StatusCode::invalid,
               "[forward] k differs from what the plan was made for; make a new plan");
  args = call.forward_args();
  args.params.q.segments[0].tensor.data = nullptr;
  expect_error(plan->run(args), StatusCode::invalid,
               "[forward] q is null but has shape [2, 4, 5, 8]");
  args = call.forward_args();
  args.lse.data = args.out.segments[0].tensor.data;
  expect_error(plan->run(args), StatusCode::invalid, "[forward] output out overlaps lse");
  expect_error(plan->run(call.backward_args()), StatusCode::invalid,
               "[backward] the plan was made for forward");
}

TEST_F(Dispatch, CountersAreExactUnderConcurrency) {
  constexpr int kThreads = 4, kCalls = 50;
  ASSERT_TRUE(run({}).ok());
  reset_counters();
  // The fake records its runs without synchronisation; a kernel that does not is enough here.
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([] {
      Call mine;
      for (int n = 0; n < kCalls; ++n)
        EXPECT_TRUE(forward(mine.forward_args(), choose("cpu.reference.forward")).ok());
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counters().forward_calls, static_cast<std::uint64_t>(kThreads * kCalls));
  EXPECT_EQ(completed("cpu.reference.forward"), static_cast<std::uint64_t>(kThreads * kCalls));
  reset_counters();
  EXPECT_EQ(counters().forward_calls, 0u);
  EXPECT_TRUE(counters().kernels.empty());
}

TEST_F(Dispatch, WhyNotAnswersForEveryKernel) {
  behaviour().best_refuses = Refusal::because(RefusalCode::v_head_dim, 8, 4);
  auto reasons = why_not(call.forward_args());
  ASSERT_TRUE(reasons.ok());
  ASSERT_EQ(reasons->size(), 5u);
  EXPECT_EQ((*reasons)[0].reason, "v_head_dim 8 > 4");
  EXPECT_EQ((*reasons)[2].reason, "");
  EXPECT_EQ((*reasons)[3].reason, "serves only when chosen by name");
  EXPECT_EQ((*reasons)[4].kernel, "fake.queued.forward");
  EXPECT_NE((*reasons)[4].reason, "");
}

TEST_F(Dispatch, WhateverIsThrownBecomesAStatus) {
  behaviour().best_throws = true;
  expect_error(run({}), StatusCode::internal, "unknown exception");
  expect_error(Plan::make(call.forward_args()).status(), StatusCode::internal, "unknown exception");
  expect_error(why_not(call.forward_args()).status(), StatusCode::internal, "unknown exception");
  expect_error(run_self_checks(), StatusCode::internal, "unknown exception");
}

}  // namespace
}  // namespace fovea::test
