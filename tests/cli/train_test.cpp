// fovea train as its user meets it: signals, checkpoints, options.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>
#include <vector>

#include "tests/cli/files.h"

namespace fovea {
namespace {

using test::ProcessResult;
using test::run_tool;
using test::TemporaryFolder;

/// A text, and options for a model so small that a step takes a millisecond.
class CliTrain : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    while (text.size() < 20000) text += "the fox and the dog " + std::to_string(text.size()) + "\n";
    test::write_file(folder_ / "text.txt", text);
  }
  [[nodiscard]] std::string train(const std::string& out) const {
    return "train --data " + (folder_ / "text.txt") + " --out " + (folder_ / out) +
           " --validate-every 0 --threads 1 ";
  }
  static constexpr const char* kSmall = "--batch 1 --layers 1 --heads 2 --width 32 --context 64 ";

  /// Starts the tool, sends it signals some time after it has said `when` and after each other, and
  /// gives its exit code, or the signal that ended it, negative.
  [[nodiscard]] int interrupted(const std::string& arguments, const std::string& when,
                                const std::vector<int>& signals, int milliseconds) const {
    const std::string err = folder_ / "err";
    const std::string command = "exec " FOVEA_CLI_PATH " " + arguments + " 2>" + err;
    test::write_file(err, "");
    const pid_t child = fork();
    if (child == 0) {
      std::signal(SIGHUP, SIG_DFL);  // which nohup ignores
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    for (int n = 0; n < 6000 && test::read_file(err).find(when) == std::string::npos; ++n) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    for (const int signal : signals) {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      kill(child, signal);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  TemporaryFolder folder_;
};

TEST_F(CliTrain, ASignalSavesWhateverTheThreadComputes) {
  // Mostly matrix products, whose generated code must not be left with a handler's frame.
  const std::string model = "--batch 1 --layers 4 --heads 2 --width 128 --context 128 ";
  for (int n = 0; n < 12; ++n) {
    const int signal = n == 10 ? SIGTERM : n == 11 ? SIGHUP : SIGINT;
    const std::string out = "signal" + std::to_string(n);
    const std::string arguments = train(out) + model + "--steps 300000";
    ASSERT_EQ(interrupted(arguments, "step ", {signal}, 50 + 7 * n), 128 + signal)
        << test::read_file(folder_ / "err");
    const ProcessResult resumed = run_tool(train(out) + "--resume --stop-at 1");
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  }
}

TEST_F(CliTrain, ASecondCtrlCEndsTheProgramInALongStep) {
  const std::string slow = "--batch 4 --layers 4 --heads 8 --width 512 --context 1024 --steps 9";
  EXPECT_EQ(interrupted(train("long") + slow, "columns:", {SIGINT, SIGINT}, 100), -SIGINT);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "long/checkpoint.safetensors"));
}

void expect_usage_error(const ProcessResult& result, const std::string& text) {
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_EQ(test::lines_of(result.err), 1) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find(text), std::string::npos) << "wanted: " << text << "\n" << result.err;
}

TEST_F(CliTrain, ACheckpointIsReplacedOnlyWhenAsked) {
  const std::string two = train("out") + kSmall + "--steps 2 ";
  ASSERT_EQ(run_tool(two).exit_code, 0);
  const std::string checkpoint = folder_ / "out/checkpoint.safetensors";
  const std::string before = test::read_file(checkpoint);
  expect_usage_error(run_tool(two + "--seed 7"), "--resume or replace it with --overwrite");
  EXPECT_TRUE(test::read_file(checkpoint) == before);
  EXPECT_EQ(run_tool(two + "--seed 7 --overwrite").exit_code, 0);
  EXPECT_FALSE(test::read_file(checkpoint) == before);
  EXPECT_EQ(run_tool(train("out") + "--resume").exit_code, 0);
}

TEST_F(CliTrain, WrongNumbersNameTheOption) {
  const std::pair<std::string, std::string> cases[] = {
      {"--seed -1", "--seed: '-1'"},
      {"--seed 99999999999999999999", "--seed"},
      {"--sample -1", "--sample"},
      {"--stop-at 10 --steps 9", "--stop-at 10"},
      {"--steps 0", "--seconds"},
      {"--steps 99999999999999999999", "--steps"},
      {"--heads 5 --width 64", "--heads"},
      {"--heads 1 --width 1024", "--heads"},
      {"--layers 4097", "--layers"},
      {"--context 0", "--context"},
      {"--batch 99999999", "--batch"},
      {"--warmup -1", "--warmup"},
      {"--lr nan", "--lr"},
      {"--final-lr 2", "--final-lr"},
      {"--clip nan", "--clip"},
      {"--weight-decay inf", "--weight-decay"},
      {"--beta1 1", "--beta1"},
      {"--validation-fraction nan", "--validation-fraction"},
      {"--seconds nan", "--seconds"},
      {"--log-every 0", "--log-every"},
      {"--threads 1025", "--threads"}};
  for (const auto& [options, text] : cases) {
    const std::string arguments = "train --data " + (folder_ / "text.txt") + " --out ";
    expect_usage_error(run_tool(arguments + (folder_ / "no ") + options), text);
  }
  expect_usage_error(run_tool("train"), "--data");
  ASSERT_EQ(run_tool(train("out") + kSmall + "--steps 2").exit_code, 0);
  const ProcessResult beyond = run_tool(train("out") + "--resume --stop-at 3");
  EXPECT_EQ(beyond.exit_code, 2);
  EXPECT_NE(beyond.err.find("--stop-at 3 lies beyond the 2 steps"), std::string::npos)
      << beyond.err;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "no"));
}

TEST_F(CliTrain, AFolderThatCannotBeWrittenIsSaidBeforeTheFirstStep) {
  std::filesystem::create_directories(folder_ / "out/checkpoint.safetensors");
  const ProcessResult result = run_tool(train("out") + kSmall + "--steps 2 --overwrite");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("checkpoint.safetensors"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("step "), std::string::npos) << result.err;
}

TEST_F(CliTrain, CompareTakesTheModelAndRefusesTheRest) {
  const std::string compare = "train --compare --compare-contexts 32 --compare-steps 1 ";
  const ProcessResult small = run_tool(compare + "--layers 1 --heads 4 --width 32 --threads 1");
  EXPECT_EQ(small.exit_code, 0) << small.err;
  EXPECT_NE(small.out.find("1 layers, 4 heads of 8"), std::string::npos) << small.out;
  expect_usage_error(run_tool(compare + "--heads 3"), "--heads");
  for (const char* option :
       {"--data x", "--out x", "--steps 3", "--batch 2", "--lr 1", "--seconds 3", "--resume",
        "--overwrite", "--sample 3", "--context 64", "--attention-backend flash"}) {
    expect_usage_error(run_tool(compare + option), "--compare");
  }
}

TEST_F(CliTrain, GenerateEchoesNoPromptThatItRefuses) {
  ASSERT_EQ(run_tool(train("out") + kSmall + "--steps 1").exit_code, 0);
  const std::string generate = "generate --threads 1 --checkpoint " + (folder_ / "out") + " ";
  const ProcessResult whole = run_tool(generate + "--prompt fox --tokens 2");
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_EQ(whole.out.substr(0, 3), "fox");
  const ProcessResult long_prompt = run_tool(generate + "--prompt " + std::string(65, 'x'));
  EXPECT_EQ(long_prompt.exit_code, 1);
  EXPECT_EQ(long_prompt.out, "");
  expect_usage_error(run_tool(generate + "--prompt fox --tokens -1"), "--tokens");
  expect_usage_error(run_tool(generate + "--temperature nan"), "--temperature");
  expect_usage_error(run_tool(generate + "--top-p 0"), "--top-p");
  expect_usage_error(run_tool(generate + "--top-k -1"), "--top-k");
  expect_usage_error(run_tool(generate + "--seed -1"), "--seed");
}

}  // namespace
}  // namespace fovea
