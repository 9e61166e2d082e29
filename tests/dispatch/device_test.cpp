// Runs on a device that works through streams: completion that comes later, failures, capture,
// workspaces, copies for the self-check.
#include <chrono>
#include <cstring>
#include <thread>

#include <fovea/device_memory.h>

#include "../api/call.h"
#include "fake_device.h"
#include "fake_kernels.h"

namespace fovea::test {
namespace {

constexpr Device kDevice{DeviceType::cuda, 0};
char first_stream, second_stream;

/// The tensors of a Call, copied to the device.
class DeviceCall {
 public:
  DeviceCall() {
    for (auto* part : {&host_.q, &host_.k, &host_.v, &host_.out, &host_.lse, &host_.dout, &host_.dq,
                       &host_.dk, &host_.dv}) {
      buffers_.push_back(DeviceBuffer::make(kDevice, part->size() * sizeof(float)).value());
      throw_if_error(buffers_.back().upload(part->data(), part->size() * sizeof(float)));
    }
  }
  ForwardArgs forward_args() {
    ForwardArgs args = host_.forward_args();
    move_params(args.params);
    move(args.out.segments[0].tensor, 3);
    move(args.lse, 4);
    return args;
  }
  BackwardArgs backward_args() {
    BackwardArgs args = host_.backward_args();
    move_params(args.params);
    move(args.out.segments[0].tensor, 3);
    move(args.lse, 4);
    move(args.dout.segments[0].tensor, 5);
    move(args.dq.segments[0].tensor, 6);
    move(args.dk.segments[0].tensor, 7);
    move(args.dv.segments[0].tensor, 8);
    return args;
  }
  /// The result on the device, and the one that the CPU has.
  std::vector<float> out() {
    std::vector<float> values(host_.out.size());
    throw_if_error(buffers_[3].download(values.data(), values.size() * sizeof(float)));
    return values;
  }
  std::vector<float> expected() {
    throw_if_error(forward(host_.forward_args(), choose("cpu.reference.forward")));
    return host_.out;
  }

 private:
  template <class View>
  void move(View& view, std::size_t buffer) {
    view.data = buffers_[buffer].data();
    view.device = kDevice;
  }
  void move_params(AttentionParams& params) {
    move(params.q.segments[0].tensor, 0);
    move(params.k.segments[0].tensor, 1);
    move(params.v.segments[0].tensor, 2);
  }
  Call host_;
  std::vector<DeviceBuffer> buffers_;
};

class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    behaviour() = Behaviour{};
    release_cached_memory();
    fake_device().reset();
    reset_counters();
    set_proof_level(ProofLevel::proof);
    set_proof_sink([this](std::string_view line) { lines.emplace_back(line); });
    ASSERT_TRUE(Plan::make(call.forward_args()).ok());  // passes its self-check first
    behaviour().runs = 0;
  }
  void TearDown() override {
    fake_device().reset();
    set_proof_sink({});
    set_proof_level(ProofLevel::off);
  }

  Status run(void* stream = &first_stream, Job* job = nullptr) {
    CallOptions options;
    options.run.stream = stream;
    options.run.job = job;
    return forward(call.forward_args(), options);
  }
  static KernelCount count() {
    for (const KernelCount& k : counters().kernels)
      if (k.kernel == "fake.queued.forward") return k;
    return {};
  }

  DeviceCall call;
  std::vector<std::string> lines;
};

TEST_F(OnDevice, IsProvedWhenItHasFinishedAndNotBefore) {
  Job job("asynchronous");
  ASSERT_TRUE(run(&first_stream, &job).ok());
  ASSERT_TRUE(job.flush().ok());
  EXPECT_TRUE(lines.empty());
  EXPECT_TRUE(job.kernels_ran().empty());
  EXPECT_EQ(count().launched, 1u);
  EXPECT_EQ(count().completed, 0u);

  fake_device().work(&first_stream);
  ASSERT_TRUE(job.flush().ok());
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].rfind("[fovea] ran fake.queued.forward d8 f32 ver=", 0), 0u) << lines[0];
  EXPECT_NE(lines[0].find(" device=a fake device"), std::string::npos) << lines[0];
  EXPECT_EQ(job.kernels_ran(), std::vector<std::string>{"fake.queued.forward"});
  EXPECT_EQ(count().completed, 1u);
  EXPECT_EQ(call.out(), call.expected());
  lines.clear();

  ASSERT_TRUE(run(&first_stream, &job).ok());
  fake_device().work(&first_stream);
  ASSERT_TRUE(job.flush().ok());
  EXPECT_TRUE(lines.empty()) << "one line a job and kernel";
  EXPECT_EQ(count().completed, 2u);
  EXPECT_EQ(fake_device().marks(), 0u);
}

TEST_F(OnDevice, LaterCallsAndCountersLookToo) {
  Job job("goes on");
  ASSERT_TRUE(run(&first_stream, &job).ok());
  fake_device().work(&first_stream);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));  // they look once a millisecond
  ASSERT_TRUE(run(&first_stream, &job).ok());
  EXPECT_EQ(lines.size(), 1u);
  fake_device().work(&first_stream);
  EXPECT_EQ(count().completed, 2u);
}

TEST_F(OnDevice, TheLineComesEvenAfterTheJobsEnd) {
  {
    Job job("short");
    ASSERT_TRUE(run(&first_stream, &job).ok());
  }
  EXPECT_TRUE(lines.empty());
  fake_device().work(&first_stream);
  ASSERT_TRUE(flush().ok());
  EXPECT_EQ(lines.size(), 1u);
}

TEST_F(OnDevice, AStreamDoesNotHoldUpAnother) {
  for (int n = 0; n < 100; ++n) ASSERT_TRUE(run(&first_stream).ok());
  for (int n = 0; n < 3; ++n) ASSERT_TRUE(run(&second_stream).ok());
  fake_device().work(&second_stream);
  EXPECT_EQ(count().completed, 3u);
  fake_device().work(&first_stream);
  EXPECT_EQ(count().completed, 103u);
}

TEST_F(OnDevice, RunsShareMarksOnceTheirKernelIsProved) {
  ASSERT_TRUE(run(&first_stream).ok());
  fake_device().work(&first_stream);
  ASSERT_TRUE(flush().ok());
  for (int n = 0; n < 70; ++n) ASSERT_TRUE(run(&first_stream).ok());
  EXPECT_EQ(fake_device().marks(), 3u);  // of 32, 32 and 6
  EXPECT_EQ(count().completed, 1u);
  fake_device().work(&first_stream);
  EXPECT_EQ(count().completed, 71u);
  EXPECT_EQ(fake_device().marks(), 0u);

  Job job("unproved");
  for (int n = 0; n < 3; ++n) ASSERT_TRUE(run(&first_stream, &job).ok());
  EXPECT_EQ(fake_device().marks(), 3u);
}

TEST_F(OnDevice, RunsBeforeAResetAreNotCountedAfterIt) {
  Job job("goes on");
  ASSERT_TRUE(run(&first_stream, &job).ok());
  reset_counters();
  fake_device().work(&first_stream);
  EXPECT_EQ(count().completed, 0u);
  EXPECT_EQ(lines.size(), 1u) << "but proved all the same";
}

TEST_F(OnDevice, ARefusedLaunchIsAStatusAndNeverProved) {
  behaviour().queued_fails = true;
  Job job("fails");
  expect_error(run(&first_stream, &job), StatusCode::device, "[fake] the launch was refused");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0],
            "[fovea] NOT used fake.queued.forward — [fake] the launch was refused; nothing served "
            "instead");
  EXPECT_EQ(count().launched, 1u);
  EXPECT_EQ(count().failed, 1u);
  EXPECT_EQ(count().completed, 0u);
  EXPECT_EQ(fake_device().marks(), 0u);
}

TEST_F(OnDevice, AFailureOnTheDeviceIsReportedOnceByTheJob) {
  behaviour().queued_fails_late = true;
  Job job("fails late");
  ASSERT_TRUE(run(&first_stream, &job).ok());
  fake_device().work(&first_stream);
  expect_error(job.flush(), StatusCode::device, "[fake] an illegal address");
  EXPECT_TRUE(job.flush().ok());
  EXPECT_TRUE(flush().ok()) << "the process's job had no failure";
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0],
            "[fovea] NOT used fake.queued.forward — [fake] an illegal address; nothing served "
            "instead");
  EXPECT_EQ(count().failed, 1u);
  EXPECT_EQ(count().completed, 0u);
}

TEST_F(OnDevice, ACapturedRunIsCountedAsSuchAndProvedByItsReplays) {
  const ForwardArgs args = call.forward_args();
  const Result<Plan> plan = Plan::make(args);
  ASSERT_TRUE(plan.ok());
  fake_device().capturing.insert(&first_stream);
  Job job("recorded");
  RunOptions options;
  options.stream = &first_stream;
  options.job = &job;
  ASSERT_TRUE(plan->run(args, options).ok());
  ASSERT_TRUE(plan->run(args, options).ok());
  ASSERT_TRUE(flush().ok());
  EXPECT_EQ(count().captured, 2u);
  EXPECT_EQ(count().replayed, 0u);
  EXPECT_TRUE(job.kernels_ran().empty());
  EXPECT_TRUE(lines.empty());

  fake_device().work(&first_stream);  // what the graph has recorded: a replay
  EXPECT_EQ(count().replayed, 2u);
  EXPECT_EQ(count().launched, 0u);
  EXPECT_EQ(count().completed, 0u);
  EXPECT_EQ(job.kernels_ran(), std::vector<std::string>{"fake.queued.forward"});
  EXPECT_EQ(lines.size(), 1u);
  EXPECT_NE(counters_json().find("\"captured\":2,\"replayed\":2,"), std::string::npos);
  reset_counters();
  EXPECT_EQ(count().replayed, 0u) << "replays are counted once";
}

TEST_F(OnDevice, PlansAreMadeBeforeCapture) {
  fake_device().capturing.insert(&first_stream);
  expect_error(run(), StatusCode::invalid,
               "[forward] plans are made before capture: make a Plan, or call once, before the "
               "stream records a graph");
  ASSERT_TRUE(run(&second_stream).ok());  // a stream that is not recorded
  EXPECT_TRUE(run().ok()) << "the plan is there now";
  EXPECT_EQ(count().captured, 1u);
}

TEST_F(OnDevice, ACapturedRunBringsItsWorkspace) {
  behaviour().workspace_bytes = 1000;
  const ForwardArgs args = call.forward_args();
  const Result<Plan> plan = Plan::make(args);
  ASSERT_TRUE(plan.ok());
  fake_device().capturing.insert(&first_stream);
  RunOptions options;
  options.stream = &first_stream;
  expect_error(plan->run(args, options), StatusCode::invalid,
               "[forward] a run that a graph records needs the caller's workspace of 1000 bytes: "
               "the library's may be another when the graph is replayed");
  const DeviceBuffer workspace = DeviceBuffer::make(kDevice, 1000).value();
  options.workspace = workspace.data();
  options.workspace_bytes = workspace.bytes();
  const int before = fake_device().allocations;
  EXPECT_TRUE(plan->run(args, options).ok());
  EXPECT_EQ(behaviour().seen_workspace, workspace.data());
  EXPECT_EQ(fake_device().allocations, before);
}

TEST_F(OnDevice, ARunAsksItsCallersSourceForWhatItNeeds) {
  behaviour().workspace_bytes = 1000;
  struct Source {
    DeviceBuffer buffer = DeviceBuffer::make(kDevice, 1064).value();
    std::size_t asked = 0, offset = 0;
    bool empty = false;
  } source;
  fake_device().capturing.insert(&first_stream);  // where the library's own would be refused
  const ForwardArgs args = call.forward_args();
  const Result<Plan> plan = Plan::make(args);
  ASSERT_TRUE(plan.ok());
  RunOptions options;
  options.stream = &first_stream;
  options.source.self = &source;
  options.source.allocate = [](void* self, std::size_t bytes) -> void* {
    auto& of = *static_cast<Source*>(self);
    of.asked = bytes;
    return of.empty ? nullptr : static_cast<std::byte*>(of.buffer.data()) + of.offset;
  };
  EXPECT_TRUE(plan->run(args, options).ok());
  EXPECT_EQ(source.asked, 1000u);
  EXPECT_EQ(behaviour().seen_workspace, source.buffer.data());
  source.offset = 8;
  EXPECT_EQ(plan->run(args, options).code(), StatusCode::invalid);
  source.empty = true;
  expect_error(plan->run(args, options), StatusCode::out_of_memory,
               "[forward] the caller's source has no 1000 bytes of workspace");
  const DeviceBuffer workspace = DeviceBuffer::make(kDevice, 1000).value();
  options.workspace = workspace.data();  // comes before the source
  options.workspace_bytes = workspace.bytes();
  EXPECT_TRUE(plan->run(args, options).ok());
}

TEST_F(OnDevice, EachStreamHasAWorkspaceThatIsUsedAgain) {
  behaviour().workspace_bytes = 1000;
  ASSERT_TRUE(run(&first_stream).ok());
  const void* first = behaviour().seen_workspace;
  EXPECT_TRUE(fake_device().blocks.count(const_cast<void*>(first)));
  ASSERT_TRUE(run(&second_stream).ok());
  EXPECT_NE(behaviour().seen_workspace, first);
  const int before = fake_device().allocations;
  ASSERT_TRUE(run(&first_stream).ok());
  EXPECT_EQ(behaviour().seen_workspace, first);
  EXPECT_EQ(fake_device().allocations, before);

  behaviour().workspace_bytes = 5000;
  release_cached_memory();  // the plan too, which knows the old size
  EXPECT_FALSE(fake_device().blocks.count(const_cast<void*>(first)));
  ASSERT_TRUE(run(&first_stream).ok());
  EXPECT_TRUE(fake_device().blocks.count(const_cast<void*>(behaviour().seen_workspace)));
}

TEST_F(OnDevice, AWorkspaceThatDoesNotFitIsOutOfMemory) {
  behaviour().workspace_bytes = std::size_t{1} << 40;
  CallOptions options;
  options.plan.self_check = false;
  EXPECT_EQ(forward(call.forward_args(), options).code(), StatusCode::out_of_memory);
}

TEST_F(OnDevice, ManyStreamsDoNotKeepManyWorkspaces) {
  behaviour().workspace_bytes = 1000;
  const std::size_t before = fake_device().blocks.size();
  std::vector<char> streams(100);
  for (char& stream : streams) ASSERT_TRUE(run(&stream).ok());
  EXPECT_LE(fake_device().blocks.size() - before, 16u);
}

TEST_F(OnDevice, BackwardRunsAndIsCheckedToo) {
  ASSERT_TRUE(run().ok());
  CallOptions options;
  options.run.stream = &first_stream;
  Report report;
  ASSERT_TRUE(backward(call.backward_args(), options, &report).ok());
  EXPECT_EQ(report.kernel, "fake.queued.backward");
  for (const KernelInfo& info : kernels())
    if (info.id == "fake.queued.backward") EXPECT_EQ(info.self_check, SelfCheck::passed);
}

TEST_F(OnDevice, NoDoutIsAZeroOnTheDevice) {
  ASSERT_TRUE(run(nullptr).ok());
  BackwardArgs args = call.backward_args();
  const DeviceBuffer dlse =
      DeviceBuffer::make(kDevice, sizeof(float) * static_cast<std::size_t>(args.lse.elements()))
          .value();
  args.dout = {};
  args.dlse = args.lse;
  args.dlse.data = dlse.data();
  EXPECT_TRUE(backward(args).ok());
}

TEST_F(OnDevice, TheSelfCheckKeepsAWrongKernelOut) {
  behaviour().queued_is_wrong = true;
  ForwardArgs args = call.forward_args();
  args.params.softcap = 3;  // another instantiation than those checked so far
  const Status status = forward(args);
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("fake.queued.forward — failed its self-check: error "),
            std::string::npos)
      << status.message();
}

TEST_F(OnDevice, EachDeviceIsCheckedOnItsOwn) {
  fake_device().devices = 2;
  ForwardArgs args = call.forward_args();
  const auto move = [](auto& view) { view.device.index = 1; };
  move(args.params.q.segments[0].tensor);
  move(args.params.k.segments[0].tensor);
  move(args.params.v.segments[0].tensor);
  move(args.out.segments[0].tensor);
  move(args.lse);
  behaviour().queued_is_wrong = true;
  EXPECT_EQ(Plan::make(args).status().code(), StatusCode::unsupported);
  EXPECT_TRUE(Plan::make(call.forward_args()).ok()) << "the first device has passed";
}

TEST_F(OnDevice, DevicesThatAreNotThereAreNamed) {
  ForwardArgs args = call.forward_args();
  args.params.q.segments[0].tensor.device.index = 3;
  args.params.k.segments[0].tensor.device.index = 3;
  args.params.v.segments[0].tensor.device.index = 3;
  args.out.segments[0].tensor.device.index = 3;
  args.lse.device.index = 3;
  expect_error(forward(args), StatusCode::unsupported,
               "[forward] device cuda:3 cannot be used: there is 1 cuda device");
  fake_device().devices = 0;
  expect_error(forward(args), StatusCode::unsupported,
               "[forward] device cuda:3 cannot be used: no fake device is plugged in");
  const std::vector<AbsentBackend> absent = absent_backends();
  ASSERT_FALSE(absent.empty());
  EXPECT_EQ(absent.back().backend, "cuda");
  EXPECT_EQ(absent.back().reason, "no fake device is plugged in");
}

TEST_F(OnDevice, MergesAreQueuedOnTheStreamThatIsGiven) {
  const ForwardArgs args = call.forward_args();
  const DeviceBuffer out = DeviceBuffer::make(kDevice, 4096).value();
  MutableTensorView merged = args.out.segments[0].tensor;
  merged.data = out.data();
  const PartialResult part{args.out.segments[0].tensor, args.lse};
  ASSERT_TRUE(merge_partials({&part, 1}, {}, merged, {}, {&second_stream}).ok());
  EXPECT_EQ(fake_device().merged_on, &second_stream);
  merged.device.index = 7;
  EXPECT_FALSE(merge_partials({&part, 1}, {}, merged, {}).ok());
}

TEST_F(OnDevice, BuffersAreCopiedWithinTheirBounds) {
  DeviceBuffer buffer = DeviceBuffer::make(kDevice, 8).value();
  const char text[] = "abcd";
  char back[5] = {};
  ASSERT_TRUE(buffer.upload(text, 4, 4).ok());
  ASSERT_TRUE(buffer.download(back, 4, 4).ok());
  EXPECT_STREQ(back, text);
  expect_error(buffer.upload(text, 5, 4), StatusCode::invalid,
               "[device memory] 5 bytes from 4 on do not fit into a buffer of 8 bytes");
  EXPECT_EQ(DeviceBuffer::make({DeviceType::metal, 0}, 8).status().code(), StatusCode::unsupported);
  EXPECT_TRUE(DeviceBuffer::make(Device{}, 0).ok());
  EXPECT_TRUE(synchronize(Device{}).ok());
}

}  // namespace
}  // namespace fovea::test
