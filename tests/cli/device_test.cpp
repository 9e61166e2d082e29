// Devices on the command line, with the emulated one where this build has it.
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "files.h"
#include "io/npy.h"

namespace fovea {
namespace {

using test::ProcessResult;
using test::run_tool;
using test::TemporaryFolder;

constexpr const char* kCase = "b1_hq2_hkv1_q5_k7_d8_f32";

/// Lets programs that are started from here emulate a device.
class Emulated : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("FOVEA_CUDA_EMULATE", "1", 1);
    if (run_tool("info").out.find("device cuda:0") == std::string::npos)
      GTEST_SKIP() << "this build emulates no device";
  }
  void TearDown() override { ::unsetenv("FOVEA_CUDA_EMULATE"); }
};

TEST(CliDevice, OptionsThatMakeNoSenseAreWrongUsage) {
  EXPECT_EQ(run_tool(std::string("check --seed-schedule 3 ") + kCase).exit_code, 2);
  const ProcessResult result =
      run_tool("run --device gpu --q q.npy --k k.npy --v v.npy --out o.npy");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("must be cpu, cuda or cuda:N; got 'gpu'"), std::string::npos)
      << result.err;
}

TEST(CliDevice, ADeviceThatIsNotThereIsSaid) {
  const ProcessResult info = run_tool("info");
  if (info.out.find("device cuda:0") != std::string::npos) GTEST_SKIP() << "there is one";
  EXPECT_NE(info.out.find("\n  cuda  "), std::string::npos) << info.out;
}

TEST_F(Emulated, InfoShowsIt) {
  const ProcessResult info = run_tool("info");
  EXPECT_EQ(info.exit_code, 0);
  EXPECT_NE(info.out.find("emulated sm_80"), std::string::npos) << info.out;
  EXPECT_EQ(info.out.find("\n  cuda  "), std::string::npos) << info.out;
  EXPECT_NE(run_tool("info --json").out.find("\"emulated\": true"), std::string::npos);
}

TEST_F(Emulated, RunSaysWhichDeviceThereIsNot) {
  const TemporaryFolder folder;
  const io::Array array = io::make_array(DType::f32, {1, 1, 3, 4}).value();
  ASSERT_TRUE(io::write_npy(folder / "x.npy", array.info, array.data.data()).ok());
  const std::string file = folder / "x.npy";
  const ProcessResult result = run_tool("run --device cuda:1 --q " + file + " --k " + file +
                                        " --v " + file + " --out " + (folder / "out.npy"));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("device cuda:1 cannot be used: there is 1 cuda device"),
            std::string::npos)
      << result.err;
}

TEST_F(Emulated, CheckFindsTheDevice) {
  ::unsetenv("FOVEA_CUDA_EMULATE");
  const ProcessResult result =
      run_tool(std::string("check --emulate --kernel cpu.portable.forward ") + kCase);
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

}  // namespace
}  // namespace fovea
