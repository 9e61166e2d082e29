// Measured choices, with kernels of known speed.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <unistd.h>

#include "../api/call.h"
#include "fake_kernels.h"

namespace fovea::test {
namespace {

namespace fs = std::filesystem;

class Autotune : public testing::Test {
 protected:
  void SetUp() override {
    folder = fs::temp_directory_path() / ("fovea_autotune_" + std::to_string(getpid()));
    fs::remove_all(folder);
    setenv("FOVEA_CACHE_DIR", folder.c_str(), 1);
    behaviour() = Behaviour{};
    release_cached_memory();
    // Self-checks run kernels too; make them now, and count from here.
    PlanOptions options;
    for (const char* kernel : {"fake.best", "fake.plain"}) {
      options.choice.kernel = kernel;
      ASSERT_TRUE(Plan::make(call.forward_args(), options).ok());
    }
    behaviour() = Behaviour{};
    behaviour().best_sleeps_us = 2000;
    behaviour().plain_sleeps_us = 200;
  }
  void TearDown() override {
    for (const char* name : {"FOVEA_CACHE_DIR", "FOVEA_KERNEL", "FOVEA_BACKEND"}) unsetenv(name);
    release_cached_memory();
    fs::remove_all(folder);
  }

  Report plan(PlanOptions options = {}) {
    options.autotune = true;
    Result<Plan> made = Plan::make(call.forward_args(), options);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? made->report() : Report{};
  }
  static int runs() { return behaviour().best_runs + behaviour().plain_runs; }
  /// What a new process would know: only the file.
  static void forget() { release_cached_memory(); }
  [[nodiscard]] fs::path file() const { return folder / "autotune.jsonl"; }
  [[nodiscard]] std::string text() const {
    std::ifstream in(file());
    return {std::istreambuf_iterator<char>(in), {}};
  }

  fs::path folder;
  Call call;
};

TEST_F(Autotune, TheFasterKernelServesAndTheOthersSayWhy) {
  const Report report = plan();
  EXPECT_EQ(report.kernel, "fake.plain.forward");
  EXPECT_TRUE(report.tuned.measured);
  EXPECT_EQ(report.tuned.note, "");
  ASSERT_EQ(report.tuned.kernels.size(), 2u);
  EXPECT_EQ(report.tuned.kernels[0].kernel, "fake.best.forward");
  EXPECT_GT(report.tuned.kernels[0].ms, report.tuned.kernels[1].ms);
  EXPECT_FALSE(report.fallback);
  ASSERT_EQ(report.passed_over.size(), 1u);
  EXPECT_EQ(report.passed_over[0].kernel, "fake.best.forward");
  EXPECT_EQ(report.passed_over[0].reason.rfind("measured slower: ", 0), 0u)
      << report.passed_over[0].reason;
}

TEST_F(Autotune, AKernelThatIsNoFasterDoesNotReplacePriority) {
  behaviour().best_sleeps_us = behaviour().plain_sleeps_us = 0;
  behaviour().plain_sleeps_us = 3000;
  const Report report = plan();
  EXPECT_EQ(report.kernel, "fake.best.forward");
  EXPECT_TRUE(report.tuned.measured);
  EXPECT_TRUE(report.passed_over.empty());
}

TEST_F(Autotune, TheCallersTensorsAreNotTouched) {
  std::fill(call.out.begin(), call.out.end(), 7.0f);
  const std::vector<float> before = call.q;
  ASSERT_TRUE(plan().tuned.measured);
  EXPECT_EQ(call.out, std::vector<float>(call.out.size(), 7.0f));
  EXPECT_EQ(call.q, before);
}

TEST_F(Autotune, AClassIsMeasuredOnce) {
  ASSERT_TRUE(plan().tuned.measured);
  const int measured = runs();
  ASSERT_GT(measured, 2);
  const Report again = plan();
  EXPECT_EQ(again.kernel, "fake.plain.forward");
  EXPECT_TRUE(again.tuned.known);
  EXPECT_FALSE(again.tuned.measured);
  EXPECT_EQ(runs(), measured);
}

TEST_F(Autotune, AnotherProcessReadsTheFile) {
  ASSERT_TRUE(plan().tuned.measured);
  const int measured = runs();
  forget();
  const Report again = plan();
  EXPECT_EQ(again.kernel, "fake.plain.forward");
  EXPECT_TRUE(again.tuned.known);
  ASSERT_EQ(again.tuned.kernels.size(), 2u);
  EXPECT_EQ(runs(), measured);
  ASSERT_EQ(tuned_choices().size(), 1u);
  EXPECT_EQ(tuned_choices()[0].kernel, "fake.plain.forward");
}

TEST_F(Autotune, ACorruptedFileIsIgnoredWithANotice) {
  ASSERT_TRUE(plan().tuned.measured);
  const std::string good = text();
  for (const std::string& bad :
       {std::string("not JSON"), good.substr(0, good.size() / 2), std::string(100, '\0'),
        std::string(R"({"fovea_tuning":1,"call":"x","kernel":"y","kernels":[]})"),
        std::string(
            R"({"fovea_tuning":1,"call":"x","kernel":"y","kernels":[{"kernel":"y","ms":nan}]})")}) {
    forget();
    std::ofstream(file()) << bad << "\n";
    const Report report = plan();
    EXPECT_EQ(report.kernel, "fake.plain.forward");
    EXPECT_TRUE(report.tuned.measured) << bad;
    EXPECT_EQ(report.tuned.note,
              "1 line of " + file().string() + " cannot be read and was ignored");
    // It is whole again.
    forget();
    EXPECT_EQ(plan().tuned.note, "");
  }
}

TEST_F(Autotune, AChoiceThatDoesNotServeAnyMoreIsMeasuredAgain) {
  ASSERT_TRUE(plan().tuned.measured);
  std::string changed = text();
  for (std::size_t at = 0; (at = changed.find("\"fake.plain.forward\"", at)) != std::string::npos;)
    changed.replace(at, 20, "\"fake.gone.forward\"");
  forget();
  std::ofstream(file()) << changed;
  const Report report = plan();
  EXPECT_TRUE(report.tuned.measured);
  EXPECT_EQ(report.kernel, "fake.plain.forward");
}

TEST_F(Autotune, APlaceThatCannotBeWrittenIsSaid) {
  std::ofstream(folder.string()) << "a file where a folder should be";
  const Report report = plan();
  EXPECT_EQ(report.kernel, "fake.plain.forward");
  EXPECT_NE(report.tuned.note.find("cannot be written"), std::string::npos) << report.tuned.note;
  EXPECT_TRUE(plan().tuned.known);
}

TEST_F(Autotune, ExplicitAndEnvironmentChoicesStand) {
  PlanOptions options;
  options.choice.kernel = "fake.best.forward";
  EXPECT_EQ(plan(options).kernel, "fake.best.forward");
  EXPECT_EQ(plan(options).tuned.note, "the kernel stands by the call's choice");
  setenv("FOVEA_KERNEL", "fake.best", 1);
  EXPECT_EQ(plan().kernel, "fake.best.forward");
  EXPECT_EQ(plan().tuned.note, "the kernel stands by FOVEA_KERNEL");
  unsetenv("FOVEA_KERNEL");
  setenv("FOVEA_BACKEND", "flash", 1);
  EXPECT_EQ(plan().kernel, "fake.best.forward");
  EXPECT_EQ(plan().tuned.note, "no other kernel serves");
  EXPECT_EQ(runs(), 0);
}

TEST_F(Autotune, StrictRefusesAFallbackAsEver) {
  behaviour().best_refuses = Refusal::because(RefusalCode::head_dim, 8, 4);
  PlanOptions options;
  options.autotune = options.choice.strict = true;
  const Result<Plan> refused = Plan::make(call.forward_args(), options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::unsupported);
  EXPECT_EQ(runs(), 0);
  // A faster kernel is none.
  behaviour().best_refuses = {};
  EXPECT_EQ(plan(options).kernel, "fake.plain.forward");
}

TEST_F(Autotune, AFailingTrialLeavesTheChoiceToPriority) {
  behaviour().best_fails = true;
  const Report report = plan();
  EXPECT_EQ(report.kernel, "fake.best.forward");
  EXPECT_FALSE(report.tuned.measured);
  EXPECT_NE(report.tuned.note.find("[fake] the device caught fire"), std::string::npos)
      << report.tuned.note;
  EXPECT_FALSE(fs::exists(file()));
}

TEST_F(Autotune, AWorkspaceBeyondTheLimitIsNotTried) {
  behaviour().workspace_bytes = std::size_t{5} << 30;
  const Report report = plan();
  EXPECT_EQ(report.kernel, "fake.best.forward");
  EXPECT_NE(report.tuned.note.find("a trial needs more than 4096 MiB"), std::string::npos)
      << report.tuned.note;
  EXPECT_EQ(runs(), 0);
}

TEST_F(Autotune, ConcurrentPlansMeasureOnce) {
  std::vector<std::thread> threads;
  std::vector<Report> reports(4);
  for (Report& report : reports) threads.emplace_back([&] { report = plan(); });
  for (std::thread& thread : threads) thread.join();
  int measured = 0;
  for (const Report& report : reports) {
    EXPECT_EQ(report.kernel, "fake.plain.forward");
    measured += report.tuned.measured ? 1 : 0;
  }
  EXPECT_EQ(measured, 1);
}

TEST_F(Autotune, TheDefaultMeasuresNothing) {
  const Result<Plan> made = Plan::make(call.forward_args());
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->report().kernel, "fake.best.forward");
  EXPECT_EQ(runs(), 0);
  EXPECT_FALSE(fs::exists(file()));
}

}  // namespace
}  // namespace fovea::test
