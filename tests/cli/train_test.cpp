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
    while (text.size() < 20000)
      text += "the fox and the dog, " + std::to_string(text.size()) + "\n";
    test::write_file(folder_ / "text.txt", text);
  }
  [[nodiscard]] std::string train(const std::string& out) const {
    return "train --data " + (folder_ / "text.txt") + " --out " + (folder_ / out) +
           " --validate-every 0 --threads 1 ";
  }

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

}  // namespace
}  // namespace fovea
