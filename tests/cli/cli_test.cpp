// The tool as its user meets it: exit codes, one clear line for each error, files whole or not
// there.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "io/npy.h"
#include "io/safetensors.h"
#include "tests/cli/files.h"

namespace fovea {
namespace {

using nlohmann::json;
using test::lines_of;
using test::ProcessResult;
using test::run_tool;
using test::TemporaryFolder;

constexpr const char* kCase = "b1_hq2_hkv1_q20_k30_d8_f32_causal";

void expect_usage_error(const ProcessResult& result, const std::string& text) {
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_EQ(lines_of(result.err), 1) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find(text), std::string::npos) << "wanted: " << text << "\n" << result.err;
}

void expect_failure(const ProcessResult& result, const std::string& text) {
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_EQ(lines_of(result.err), 1) << result.err;
  EXPECT_NE(result.err.find(text), std::string::npos) << "wanted: " << text << "\n" << result.err;
}

TEST(Cli, HelpIsCompleteForEveryCommand) {
  const ProcessResult help = run_tool("--help");
  EXPECT_EQ(help.exit_code, 0);
  for (const char* command : {"info", "check", "bench", "run"}) {
    EXPECT_NE(help.out.find(command), std::string::npos) << command;
    const ProcessResult own = run_tool(std::string(command) + " --help");
    EXPECT_EQ(own.exit_code, 0) << own.err;
    EXPECT_NE(own.out.find("--help"), std::string::npos);
  }
  EXPECT_NE(help.out.find("FOVEA_CPU_ISA"), std::string::npos) << help.out;
  EXPECT_EQ(run_tool("--version").exit_code, 0);
}

TEST(Cli, WrongUsageIsOneLineAndExitCode2) {
  expect_usage_error(run_tool(""), "subcommand");
  expect_usage_error(run_tool("chekc"), "chekc");
  expect_usage_error(run_tool("info --colour"), "--colour");
  expect_usage_error(run_tool("check b1_hq2_hkv2_q5_k7_d8_f32_casual"), "'casual'");
  expect_usage_error(run_tool("check --kernel cpu.avx1024.forward"), "cpu.avx1024.forward");
  expect_usage_error(run_tool("check --filter '('"), "'('");
  expect_usage_error(run_tool("check --threads 1,two"), "two");
  expect_usage_error(run_tool("bench b1"), "missing");
  expect_usage_error(run_tool("bench --rounds 3"), "3");
  expect_usage_error(run_tool("bench --min-time nan"), "nan");
  expect_usage_error(run_tool("check --random 1 --seed -1"), "'-1'");
  expect_usage_error(run_tool(std::string("bench --peer cpu.nothing ") + kCase), "cpu.nothing");
  expect_usage_error(
      run_tool(std::string("bench --direction backward --kernel cpu.portable.forward ") + kCase),
      "no backward kernel is called 'cpu.portable.forward'");
  expect_usage_error(run_tool("info --why-not b1_hq2"), "missing");
}

TEST(Cli, WhatCannotBePrintedIsAFailure) {
  const auto exit_code_of = [](const std::string& arguments) {
    return WEXITSTATUS(std::system((FOVEA_CLI_PATH " " + arguments).c_str()));
  };
  for (const std::string command :
       {"info", "info --json", "--help", "--version",
        "check --kernel cpu.portable.forward b1_hq2_hkv1_q20_k30_d8_f32_causal"}) {
    EXPECT_EQ(exit_code_of(command + " >/dev/full 2>/dev/null"), 1) << command;
    EXPECT_EQ(exit_code_of(command + " >&- 2>/dev/null"), 1) << command;
  }
  EXPECT_EQ(exit_code_of("chekc 2>/dev/full"), 2);
}

TEST(Cli, InfoListsDevicesKernelsAndAbsentBackends) {
  const ProcessResult text = run_tool("info");
  EXPECT_EQ(text.exit_code, 0);
  for (const char* part : {"device cpu:0", "cpu.reference.forward", "cpu.portable.backward",
                           "self-check", "not part of this build"}) {
    EXPECT_NE(text.out.find(part), std::string::npos) << part;
  }
  const json info = json::parse(run_tool("info --json").out);
  EXPECT_TRUE(info.contains("kernels"));
  EXPECT_TRUE(info.contains("devices"));
}

TEST(Cli, InfoRunsSelfChecks) {
  const ProcessResult result = run_tool("info --self-check");
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_NE(result.out.find("self-check passed"), std::string::npos) << result.out;
}

TEST(Cli, InfoSaysWhyNot) {
  const std::string name = "b1_hq2_hkv2_q20_k30_d8_f32_dropout0.5";
  const json info = json::parse(run_tool("info --json --why-not " + name).out);
  const json& forward = info["why_not"]["forward"];
  ASSERT_TRUE(forward.contains("cpu.portable.forward")) << forward;
  EXPECT_NE(run_tool("info --why-not " + name).out.find("dropout"), std::string::npos);
}

TEST(Cli, CheckRunsListsAndCounts) {
  const ProcessResult one = run_tool(std::string("check --kernel 'cpu.portable.*' ") + kCase);
  EXPECT_EQ(one.exit_code, 0) << one.out << one.err;
  EXPECT_NE(one.out.find("2 passed, 0 failed, 0 skipped"), std::string::npos) << one.out;

  const ProcessResult threads =
      run_tool(std::string("check --threads 1,2,8 --verbose --json ") + kCase);
  EXPECT_EQ(threads.exit_code, 0) << threads.out;

  const ProcessResult list = run_tool("check --list --filter stride0_kv");
  EXPECT_EQ(list.exit_code, 0);
  EXPECT_GE(lines_of(list.out), 2) << list.out;

  const json report = json::parse(run_tool(std::string("check --json ") + kCase).out);
  EXPECT_EQ(report["failed"], 0);
  EXPECT_GE(report["passed"].get<int>(), 8);

  const ProcessResult random =
      run_tool("check --random 5 --seed 3 --kernel 'cpu.portable.*' --min-executed 5");
  EXPECT_EQ(random.exit_code, 0) << random.out << random.err;
}

TEST(Cli, CheckFailsWhenNothingWasExecuted) {
  expect_failure(run_tool("check --kernel cpu.portable.forward b1_hq2_hkv2_q5_k7_d8_f32_int8"),
                 "0 cases were executed");
  expect_failure(run_tool("check --filter no_such_hazard"), "0 cases were executed");
  expect_failure(
      run_tool(std::string("check --min-executed 100 --kernel cpu.portable.forward ") + kCase),
      "1 cases were executed; at least 100");
}

TEST(Cli, BenchMeasuresAndWritesJson) {
  const TemporaryFolder folder;
  const ProcessResult result = run_tool(
      "bench --min-time 0.001 --rounds 7 --peer cpu.unfused --kernel cpu.portable --json " +
      (folder / "b.json") + " " + kCase);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const json report = json::parse(test::read_file(folder / "b.json"));
  ASSERT_EQ(report["rows"].size(), 2u);
  const json& row = report["rows"][0];
  EXPECT_EQ(row["case"], kCase);
  EXPECT_EQ(row["kernel"], "cpu.portable.forward");
  EXPECT_EQ(row["peer"], "cpu.unfused.forward");
  EXPECT_GT(row["seconds"]["median"].get<double>(), 0);
  EXPECT_GT(row["ratio"]["lower_quartile"].get<double>(), 0);
  EXPECT_GT(report["peak_flops"]["baseline"].get<double>(), 1e8);
  EXPECT_EQ(folder.listing(), "b.json ");
}

TEST(Cli, BenchFailsForACaseThatTheKernelRefuses) {
  const ProcessResult result = run_tool(
      "bench --min-time 0.001 --kernel cpu.portable.forward b1_hq2_hkv2_q5_k7_d8_f32_int8");
  expect_failure(result, "quantisation");
}

TEST(Cli, BenchSaysBeforeTheWorkThatItCannotWrite) {
  const ProcessResult result = run_tool(std::string("bench --json /nonexistent/b.json ") + kCase);
  expect_failure(result, "/nonexistent/b.json");
  EXPECT_EQ(result.out, "");
}

/// q, k, v and dout of a small call as files.
class CliRun : public ::testing::Test {
 protected:
  void SetUp() override {
    write("q.npy", {1, 2, 3, 4}, 0.1);
    write("k.npy", {1, 1, 5, 4}, 0.2);
    write("v.npy", {1, 1, 5, 2}, 0.3);
    write("dout.npy", {1, 2, 3, 2}, 0.4);
  }

  void write(const std::string& name, const std::vector<std::int64_t>& shape, double step) {
    io::Array array = io::make_array(DType::f32, shape).value();
    const std::size_t count = array.data.size() / sizeof(float);
    std::vector<float> values(count);
    for (std::size_t n = 0; n < count; ++n) {
      values[n] = static_cast<float>(std::sin(step * static_cast<double>(n + 1)));
    }
    std::memcpy(array.data.data(), values.data(), array.data.size());
    throw_if_error(io::write_npy(folder_ / name, array.info, array.data.data()));
  }

  [[nodiscard]] std::string inputs() const {
    return "run --q " + (folder_ / "q.npy") + " --k " + (folder_ / "k.npy") + " --v " +
           (folder_ / "v.npy") + " ";
  }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }
  [[nodiscard]] std::vector<float> values(const std::string& name) const {
    const io::Array array = io::read_npy(folder_ / name).value();
    std::vector<float> values(array.data.size() / sizeof(float));
    std::memcpy(values.data(), array.data.data(), array.data.size());
    return values;
  }

  TemporaryFolder folder_;
};

TEST_F(CliRun, ComputesWhatTheFormulaSays) {
  const ProcessResult result =
      run_tool(inputs() + "--scale 0.5 --out " + path("o.npy") + " --lse " + path("l.npy"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("ran cpu."), std::string::npos) << result.out;
  const std::vector<float> q = values("q.npy"), k = values("k.npy"), v = values("v.npy");
  const std::vector<float> out = values("o.npy"), lse = values("l.npy");
  ASSERT_EQ(out.size(), 12u);
  ASSERT_EQ(lse.size(), 6u);
  for (std::size_t row = 0; row < 6; ++row) {
    double sum = 0, expected[2] = {};
    for (std::size_t j = 0; j < 5; ++j) {
      double score = 0;
      for (std::size_t d = 0; d < 4; ++d) {
        score += 0.5 * static_cast<double>(q[row * 4 + d]) * static_cast<double>(k[j * 4 + d]);
      }
      const double p = std::exp(score);
      sum += p;
      for (std::size_t d = 0; d < 2; ++d) expected[d] += p * static_cast<double>(v[j * 2 + d]);
    }
    EXPECT_NEAR(static_cast<double>(lse[row]), std::log(sum), 1e-6);
    for (std::size_t d = 0; d < 2; ++d) {
      EXPECT_NEAR(static_cast<double>(out[row * 2 + d]), expected[d] / sum, 1e-6);
    }
  }
}

TEST_F(CliRun, GradientsGoToTheirFiles) {
  const std::string gradients = "--backward --dout " + path("dout.npy") + " --dq " +
                                path("g.safetensors:dq") + " --dk " + path("g.safetensors:dk") +
                                " --dv " + path("dv.npy");
  const ProcessResult result = run_tool(inputs() + "--causal bottom_right " + gradients);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(lines_of(result.out) >= 2, true) << result.out;
  const io::SafetensorsFile file = io::SafetensorsFile::open(path("g.safetensors")).value();
  EXPECT_EQ(file.find("dq")->shape, (std::vector<std::int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(file.find("dk")->shape, (std::vector<std::int64_t>{1, 1, 5, 4}));
  EXPECT_EQ(io::read_npy_info(path("dv.npy"))->shape, (std::vector<std::int64_t>{1, 1, 5, 2}));
}

TEST_F(CliRun, SeparateLayoutsGiveTheSameResult) {
  // One head of [1, 5, 1, 4] is the same memory as [1, 1, 5, 4].
  write("q1.npy", {1, 3, 1, 4}, 0.1);
  write("k1.npy", {1, 5, 1, 4}, 0.2);
  write("v1.npy", {1, 5, 1, 2}, 0.3);
  const std::string files = "run --q " + path("q1.npy") + " --k " + path("k1.npy") + " --v " +
                            path("v1.npy") + " --layout bshd --out " + path("o1.npy");
  ASSERT_EQ(run_tool(files).exit_code, 0);
  EXPECT_EQ(io::read_npy_info(path("o1.npy"))->shape, (std::vector<std::int64_t>{1, 3, 1, 2}));
  ASSERT_EQ(run_tool(inputs() + "--out " + path("o.npy")).exit_code, 0);
  const std::vector<float> one = values("o1.npy"), two = values("o.npy");
  EXPECT_EQ(std::vector<float>(two.begin(), two.begin() + 6), one);
}

TEST_F(CliRun, ReportsTheChosenKernelAndWhatWasPassedOver) {
  const ProcessResult result =
      run_tool(inputs() + "--kernel cpu.unfused.forward --out " + path("o.npy"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("ran cpu.unfused.forward"), std::string::npos) << result.out;
}

TEST_F(CliRun, WrongCallsSayWhatIsWrongAndWriteNothing) {
  const std::string before = folder_.listing();
  const std::string out = "--out " + path("o.npy");
  expect_usage_error(run_tool("run --q " + path("q.npy")), "--k");
  expect_usage_error(run_tool(inputs()), "--out");
  expect_usage_error(run_tool(inputs() + out + " --causal middle"), "middle");
  expect_usage_error(run_tool(inputs() + out + " --backward"), "--dout");
  expect_usage_error(run_tool(inputs() + out + " --dq " + path("dq.npy")), "--backward");
  expect_usage_error(run_tool(inputs() + out + " --causal top_left --window 1 2"), "--window");
  expect_usage_error(run_tool(inputs() + out + " --causal top_left --anchor bottom_right"),
                     "contradicts");
  expect_usage_error(run_tool(inputs() + out + " --window 1 x --anchor top_left"), "'x'");
  expect_usage_error(run_tool(inputs() + out + " --window -1 2 --anchor top_left"), "'-1'");
  expect_usage_error(run_tool(inputs() + "--out " + path("o.txt")), "o.txt");
  expect_usage_error(run_tool(inputs() + "--out " + path("o.safetensors")), "tensor name");
  expect_usage_error(run_tool(inputs() + out + " --kernel cpu.nothing.forward"),
                     "cpu.nothing.forward");
  expect_usage_error(run_tool(inputs() + out + " --backend nothing"), "'nothing'");
  expect_usage_error(run_tool(inputs() + out + " --dropout 0.1 --seed -1"), "'-1'");
  expect_usage_error(run_tool(inputs() + out + " --dropout 0.1 --seed 18446744073709551616"),
                     "2^64");
  expect_failure(run_tool(inputs() + out + " --scale nan"), "scale");
  expect_failure(run_tool(inputs() + "--cast bf16 --out " + path("o.npy")), "bf16");
  expect_failure(run_tool("run --q " + path("q.npy") + " --k " + path("v.npy") + " --v " +
                          path("v.npy") + " " + out),
                 "head_dim");
  expect_failure(run_tool(inputs() + out + " --mask " + path("q.npy")), "mask");
  EXPECT_EQ(folder_.listing(), before);
}

TEST_F(CliRun, AnOptionWithoutTheOneItNeedsIsRefused) {
  const std::string file = " " + path("dout.npy");
  const std::pair<std::string, std::string> cases[] = {
      {"--window 1 2", "--anchor"},
      {"--anchor top_left", "--window or --alibi"},
      {"--alibi" + file, "--anchor"},
      {"--seed 1", "--dropout"},
      {"--max-q-len 4", "--cu-seqlens-q"},
      {"--max-kv-len 4", "--cu-seqlens-k or --block-table"},
      {"--norm-eps 0.1", "--qk-norm"},
      {"--q-norm-weight" + file, "--qk-norm"},
      {"--rotary-dim 2", "--rope-cos"},
      {"--rope-sin" + file, "--rope-cos"},
      {"--dout" + file, "--backward"},
      {"--f32-grads", "--backward"},
      {"--backward --dout" + file + " --dmask " + path("dmask.npy"), "additive --mask"},
      {"--backward --dout" + file + " --dsinks " + path("dsinks.npy"), "--sinks"}};
  const std::string before = folder_.listing();
  for (const auto& [options, needed] : cases) {
    expect_usage_error(run_tool(inputs() + "--out " + path("o.npy ") + options), needed);
  }
  EXPECT_EQ(folder_.listing(), before);
}

TEST_F(CliRun, AnOutputNeverReplacesAnInput) {
  std::filesystem::create_symlink("q.npy", path("link.npy"));
  std::filesystem::create_hard_link(path("q.npy"), path("hard.npy"));
  const std::string before = test::read_file(path("q.npy"));
  for (const char* name : {"q.npy", "./q.npy", "link.npy", "hard.npy"}) {
    const ProcessResult result = run_tool(inputs() + "--out " + path(name));
    expect_usage_error(result, path(name));
    expect_usage_error(result, path("q.npy"));
    EXPECT_EQ(test::read_file(path("q.npy")), before);
  }
  const io::Array q = io::read_npy(path("q.npy")).value();
  throw_if_error(io::write_safetensors(path("all.safetensors"),
                                       {{"q", DType::f32, q.info.shape, q.data.data()}}));
  expect_usage_error(run_tool("run --q " + path("all.safetensors:q") + " --k " + path("k.npy") +
                              " --v " + path("v.npy") + " --out " + path("all.safetensors:out")),
                     "all.safetensors");
  EXPECT_TRUE(io::SafetensorsFile::open(path("all.safetensors"))->find("q") != nullptr);
}

TEST_F(CliRun, TwoOutputsNeverShareOnePlace) {
  for (const char* lse : {"o.npy", "./o.npy", "../folder/o.npy"}) {
    std::filesystem::create_directory(path("folder"));
    const ProcessResult result =
        run_tool(inputs() + "--out " + path("folder/o.npy") + " --lse " + path("folder/") + lse);
    expect_usage_error(result, "two outputs");
    expect_usage_error(result, path("folder/") + lse);
  }
  const ProcessResult result = run_tool(inputs() + "--out " + path("r.safetensors:out") +
                                        " --lse " + path("./r.safetensors:lse"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(io::SafetensorsFile::open(path("r.safetensors"))->entries().size(), 2u);
}

TEST_F(CliRun, AnOutputThroughALinkGoesToItsTarget) {
  std::filesystem::create_directory(path("folder"));
  std::filesystem::create_symlink("folder/target.npy", path("link.npy"));
  for (int times = 0; times < 2; ++times) {  // to be made, and there
    EXPECT_EQ(run_tool(inputs() + "--out " + path("link.npy")).exit_code, 0);
    EXPECT_TRUE(std::filesystem::is_symlink(path("link.npy")));
    EXPECT_EQ(io::read_npy_info(path("folder/target.npy"))->shape,
              (std::vector<std::int64_t>{1, 2, 3, 2}));
  }
}

TEST_F(CliRun, AnOutputThatCannotBeWrittenIsSaidBeforeTheWork) {
  const std::string before = folder_.listing();
  const ProcessResult result = run_tool(inputs() + "--out " + path("no/folder/o.npy"));
  expect_failure(result, "no/folder");
  EXPECT_EQ(result.out, "");
  // A limit of 0 lets a file be made, and nothing written. Without a folder for temporary files the
  // thread sanitizer's start writes none: the limit would end it before main.
  const ProcessResult limited = run_tool(inputs() + "--out " + path("o.npy"),
                                         "export TMPDIR=" + path("none") + "; ulimit -f 0; ");
  EXPECT_EQ(limited.exit_code, 1);
  EXPECT_EQ(folder_.listing(), before);
}

TEST_F(CliRun, MalformedFilesAreRefused) {
  test::write_file(path("bad.npy"), "\x93NUMPY\x01\x00 nonsense");
  test::write_file(path("bad.safetensors"), std::string(8, '\x7F'));
  const std::string before = folder_.listing();
  const std::string rest =
      " --k " + path("k.npy") + " --v " + path("v.npy") + " --out " + path("o.npy");
  expect_failure(run_tool("run --q " + path("bad.npy") + rest), "bad.npy");
  expect_failure(run_tool("run --q " + path("bad.safetensors:q") + rest), "bad.safetensors");
  expect_failure(run_tool("run --q " + path("missing.npy") + rest), "missing.npy");
  expect_usage_error(run_tool("run --q " + path("q.txt") + rest), "q.txt");
  EXPECT_EQ(folder_.listing(), before);
}

TEST_F(CliRun, AnExistingOutputIsReplacedOnlyByAWholeOne) {
  test::write_file(path("o.npy"), "old");
  expect_failure(run_tool(inputs() + "--scale nan --out " + path("o.npy")), "scale");
  EXPECT_EQ(test::read_file(path("o.npy")), "old");
  EXPECT_EQ(run_tool(inputs() + "--out " + path("o.npy")).exit_code, 0);
  EXPECT_EQ(io::read_npy_info(path("o.npy"))->shape, (std::vector<std::int64_t>{1, 2, 3, 2}));
}

}  // namespace
}  // namespace fovea
