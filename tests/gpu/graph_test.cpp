// A forward and a backward run that a CUDA graph records once and replays with other inputs.
#include "gpu.h"

#if FOVEA_CUDA_REAL
#include <cuda_runtime_api.h>
#endif

namespace fovea::gpu {
namespace {

class Graph : public OnGpu {};

#if FOVEA_CUDA_REAL

void expect_success(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

/// A stream, and the graph that it records.
class Recorder {
 public:
  Recorder() { expect_success(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Recorder() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    cudaStreamDestroy(stream_);
  }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  [[nodiscard]] void* stream() const { return stream_; }
  void begin() { expect_success(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal)); }
  void end() {
    cudaGraph_t graph = nullptr;
    expect_success(cudaStreamEndCapture(stream_, &graph));
    expect_success(cudaGraphInstantiate(&graph_, graph, 0));
    expect_success(cudaGraphDestroy(graph));
  }
  void replay() {
    expect_success(cudaGraphLaunch(graph_, stream_));
    throw_if_error(synchronize(kGpu, stream_));
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
};

std::vector<std::vector<float>> results_of(const DenseCall& call) {
  std::vector<std::vector<float>> all;
  for (const Tensor* x : {&call.out, &call.lse, &call.dq, &call.dk, &call.dv})
    all.push_back(x->download());
  return all;
}

KernelCount count_of(const std::string& kernel) {
  for (const KernelCount& count : counters().kernels)
    if (count.kernel == kernel) return count;
  return {};
}

/// A call whose dropout seed lies in device memory.
struct SeededCall : DenseCall {
  explicit SeededCall(const Device& on)
      : DenseCall(on, DType::f32, 2, 2, 150, 200, 64),
        seed(DeviceBuffer::make(on, sizeof(std::int64_t)).value()) {
    params.band = Band::causal(Anchor::bottom_right);
    params.dropout.probability = 0.2;
    params.dropout.seed_tensor = {seed.data(), DType::i64, {1}, on};
  }
  void upload_all(std::int64_t n) {
    upload_random(static_cast<std::uint64_t>(100 * n));
    throw_if_error(seed.upload(&n, sizeof(n)));
  }
  DeviceBuffer seed;
};

/// Records a forward and a backward run of `call` in a graph and replays it with inputs that
/// upload(call, n) makes, n = 1, 2, ...; results are to be the CPU's within `tolerance`.
template <class Call, class Upload>
void expect_replays(Call& call, Call& on_cpu, const PlanOptions& options, double tolerance,
                    Upload&& upload) {
  upload(call, 0);
  const Plan forward_plan = Plan::make(call.forward_args(), options).value();
  const Plan backward_plan = Plan::make(call.backward_args(), options).value();
  Workspace forward_memory(forward_plan, kGpu), backward_memory(backward_plan, kGpu);
  Job job("recorded");
  Recorder recorder;
  for (Workspace* memory : {&forward_memory, &backward_memory}) {
    memory->options.stream = recorder.stream();
    memory->options.job = &job;
  }
  throw_if_error(synchronize(kGpu));
  reset_counters();

  recorder.begin();
  const Status forward_status = forward_plan.run(call.forward_args(), forward_memory.options);
  const Status backward_status = backward_plan.run(call.backward_args(), backward_memory.options);
  recorder.end();
  throw_if_error(forward_status);
  throw_if_error(backward_status);
  for (const Plan* plan : {&forward_plan, &backward_plan}) {
    const KernelCount count = count_of(plan->report().kernel);
    EXPECT_EQ(count.captured, 1u) << plan->report().kernel;
    EXPECT_EQ(count.launched, 0u) << plan->report().kernel;
    EXPECT_EQ(count.replayed, 0u) << plan->report().kernel;
  }
  EXPECT_TRUE(job.kernels_ran().empty());

  constexpr int kReplays = 5;
  std::vector<std::vector<float>> before;
  for (int n = 1; n <= kReplays; ++n) {
    upload(call, n);
    upload(on_cpu, n);
    recorder.replay();
    const std::vector<std::vector<float>> replayed = results_of(call);
    EXPECT_NE(replayed, before) << "replay " << n;
    before = replayed;
    throw_if_error(forward(on_cpu.forward_args()));
    throw_if_error(backward(on_cpu.backward_args()));
    const std::vector<std::vector<float>> wanted = results_of(on_cpu);
    for (std::size_t x = 0; x < wanted.size(); ++x)
      EXPECT_LT(difference(replayed[x], wanted[x]), tolerance)
          << "replay " << n << ", result " << x;
    for (const Plan* plan : {&forward_plan, &backward_plan})
      EXPECT_EQ(count_of(plan->report().kernel).replayed, static_cast<std::uint64_t>(n))
          << plan->report().kernel;
  }
  EXPECT_EQ(job.kernels_ran(), (std::vector<std::string>{forward_plan.report().kernel,
                                                         backward_plan.report().kernel}));

  // The same plans outside a graph give the same bits.
  forward_memory.options.stream = backward_memory.options.stream = nullptr;
  throw_if_error(forward_plan.run(call.forward_args(), forward_memory.options));
  throw_if_error(backward_plan.run(call.backward_args(), backward_memory.options));
  throw_if_error(synchronize(kGpu));
  EXPECT_EQ(results_of(call), before);
}

TEST_F(Graph, replays_with_other_inputs) {
  SeededCall call(kGpu), on_cpu(kCpu);
  PlanOptions options;
  options.deterministic = true;
  expect_replays(call, on_cpu, options, 1e-5,
                 [](SeededCall& to, std::int64_t n) { to.upload_all(n); });
}

TEST_F(Graph, replays_cudnn_with_other_inputs) {
  DenseCall call(kGpu, DType::bf16, 2, 2, 256, 256, 64),
      on_cpu(kCpu, DType::bf16, 2, 2, 256, 256, 64);
  PlanOptions options;
  options.deterministic = true;
  options.choice.backend = "cudnn";
  if (const auto plan = Plan::make(call.forward_args(), options); !plan.ok())
    GTEST_SKIP() << plan.status().message();
  // Of results that are rounded to bf16, and of gradients that are made of such.
  constexpr double kTolerance = 2e-2;
  expect_replays(call, on_cpu, options, kTolerance, [](DenseCall& to, std::int64_t n) {
    to.upload_random(static_cast<std::uint64_t>(100 * n));
  });
}

#else

TEST_F(Graph, replays_with_other_inputs) { FAIL() << "a GPU without CUDA in the build"; }

#endif

}  // namespace
}  // namespace fovea::gpu
