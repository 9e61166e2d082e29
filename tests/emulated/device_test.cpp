// The emulated device through the public API.
#include <gtest/gtest.h>

#include <fovea/fovea.h>

#include "emulated_device.h"

namespace fovea {
namespace {

class EmulatedDevice : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(asked_for_emulation);
    for (const DeviceInfo& info : devices()) {
      if (info.device == kEmulated && info.emulated) return;
    }
    GTEST_SKIP() << "this build emulates no device";
  }
};

TEST_F(EmulatedDevice, MemoryIsCopiedThereAndBack) {
  Result<DeviceBuffer> buffer = DeviceBuffer::make(kEmulated, 100);
  ASSERT_TRUE(buffer.ok()) << buffer.status().message();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 64, 0u);
  const char text[] = "attention";
  char back[sizeof(text)] = {};
  ASSERT_TRUE(buffer->upload(text, sizeof(text), 10).ok());
  ASSERT_TRUE(buffer->download(back, sizeof(text), 10).ok());
  EXPECT_STREQ(back, text);
  EXPECT_TRUE(synchronize(kEmulated).ok());
}

TEST_F(EmulatedDevice, ASecondOneIsNotThere) {
  EXPECT_EQ(DeviceBuffer::make({DeviceType::cuda, 1}, 4).status().message(),
            "[device memory] device cuda:1 cannot be used: there is 1 cuda device");
}

}  // namespace
}  // namespace fovea
