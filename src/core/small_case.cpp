#include "core/small_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "contract/elements.h"
#include "core/devices.h"
#include "core/kernel_table.h"
#include "core/status_macros.h"
#include "core/validate.h"
#include "core/views.h"

namespace fovea {
namespace {

constexpr std::int64_t kBatch = 1;

/// Distance of `got` from `want`, relative where the reference has a norm.
double distance(const TensorView& got, const TensorView& want, bool relative) {
  double difference = 0, norm = 0, largest = 0;
  for (std::int64_t n = 0; n < want.elements(); ++n) {
    const double a = load_element(got.data, got.dtype, n);
    const double b = load_element(want.data, want.dtype, n);
    if (a == b) continue;  // equal infinities too
    difference += (a - b) * (a - b);
    largest = std::max(
        largest, std::isnan(a - b) ? std::numeric_limits<double>::infinity() : std::abs(a - b));
  }
  for (std::int64_t n = 0; n < want.elements(); ++n) {
    const double b = load_element(want.data, want.dtype, n);
    if (std::isfinite(b)) norm += b * b;
  }
  const double error = relative && norm > 0 ? std::sqrt(difference / norm) : largest;
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

/// Where the kernel runs: on the device of the call that it is checked for. The oracle is the
/// CPU's.
Device device_for(const Kernel& kernel, const Problem& like) {
  return kernel.device == like.device.type ? like.device : Device{kernel.device, 0};
}

/// f(pointer) for the data of every view of the problem.
template <class F>
void for_each_pointer(Problem& problem, F&& f) {
  visit_problem(problem, [&](auto& view, const char*, Role) { f(view.data); });
  for (MutableTensorView* view : {&problem.out, &problem.dmask4}) f(view->data);
  for (TensorView* view : {&problem.saved_out, &problem.dout, &problem.mask4}) f(view->data);
}

/// The problem as if its tensors were on the device; their pointers are still the host's.
Problem on_device(Problem problem, const Device& device) {
  problem.device = device;
  visit_problem(problem, [&](auto& view, const char*, Role) { view.device = device; });
  for (MutableTensorView* view : {&problem.out, &problem.dmask4}) view->device = device;
  for (TensorView* view : {&problem.saved_out, &problem.dout, &problem.mask4})
    view->device = device;
  return problem;
}

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

class DeviceMemory {
 public:
  DeviceMemory(const DeviceQueue& queue, int device, std::size_t bytes)
      : queue_(queue), device_(device), memory_(queue.allocate(device, bytes)) {}
  ~DeviceMemory() {
    if (memory_.ok()) queue_.free(device_, *memory_);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  [[nodiscard]] Status status() const { return memory_.status(); }
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(*memory_); }

 private:
  const DeviceQueue& queue_;
  int device_;
  Result<void*> memory_;
};

/// The band's shape, brought to the size of the small case.
Band shrink(const Band& band) {
  const auto side = [](std::int64_t value, std::int64_t small) {
    return value == kUnbounded ? kUnbounded : std::min(value, small);
  };
  return {band.anchor, side(band.left, 11), side(band.right, 5)};
}

}  // namespace

template <class View>
View SmallCase::tensor(DType dtype, std::initializer_list<std::int64_t> shape) {
  View view(nullptr, dtype, shape);
  const auto bytes = static_cast<std::size_t>(view.elements() * size_of(dtype));
  storage_.push_back({std::make_unique<std::byte[]>(std::max<std::size_t>(bytes, 1)), bytes});
  view.data = storage_.back().data.get();
  std::memset(storage_.back().data.get(), 0xFF, bytes);  // NaN in every float type
  return view;
}

TensorView SmallCase::random(DType dtype, std::initializer_list<std::int64_t> shape,
                             double deviation) {
  const MutableTensorView view = tensor(dtype, shape);
  for (std::int64_t n = 0; n < view.elements(); ++n) {
    random_state_ = random_state_ * 6364136223846793005u + 1442695040888963407u;
    const double uniform = static_cast<double>(random_state_ >> 11) * 0x1p-53;
    store_element(view.data, dtype, n, (uniform * 2 - 1) * 1.7320508 * deviation);
  }
  return view;
}

SmallCase::SmallCase(const Problem& like, std::int64_t queries) : like_(like), queries_(queries) {
  const Features features = like.features;
  const AttentionParams& from = like.params;
  q_heads_ = 2;
  kv_heads_ = features.has(Feature::gqa) ? 1 : 2;
  params_.q = random(like.q().dtype, {kBatch, q_heads_, queries_, like.head_dim}, 1);
  params_.k = random(like.k().dtype, {kBatch, kv_heads_, kKeys, like.head_dim}, 1);
  params_.v = random(like.v().dtype, {kBatch, kv_heads_, kKeys, like.v_head_dim}, 1);
  // One check stands for every scale and softcap, so their sizes do not come from the call: logits
  // of deviation 1, softcapped where that bends them.
  params_.scale = std::copysign(1 / std::sqrt(static_cast<double>(like.head_dim)), like.scale);
  params_.softcap = features.has(Feature::softcap) ? 2 : 0;
  params_.dtype_policy = from.dtype_policy;
  params_.f32_precision = from.f32_precision;
  if (from.band) params_.band = shrink(*from.band);
  if (features.has(Feature::additive_mask))
    params_.mask = random(from.mask.dtype, {queries_, kKeys}, 1);
  if (features.has(Feature::bool_mask)) {
    const MutableTensorView mask = tensor(DType::boolean, {queries_, kKeys});
    for (std::int64_t n = 0; n < mask.elements(); ++n)
      static_cast<unsigned char*>(mask.data)[n] = n % 3 != 0 && n / kKeys != 4;
    params_.mask = mask;
  }
  if (features.has(Feature::alibi))
    params_.alibi = {random(from.alibi.slopes.dtype, {q_heads_}, 0.1), from.alibi.anchor};
  if (features.has(Feature::sinks)) params_.sinks = random(from.sinks.dtype, {q_heads_}, 1);
  if (features.has(Feature::dropout)) {
    params_.dropout.probability = from.dropout.probability;
    params_.dropout.seed = 1234;
  }
  if (features.has(Feature::qk_norm)) {
    params_.qk_norm.enabled = true;
    params_.q.segments[0].norm_weight = random(like.q().dtype, {like.head_dim}, 1);
    params_.k.segments[0].norm_weight = random(like.k().dtype, {like.head_dim}, 1);
  }
  if (features.has(Feature::rope)) {
    const std::int64_t columns =
        from.rope.cos.shape[static_cast<std::size_t>(from.rope.cos.rank - 1)];
    params_.rope = from.rope;
    params_.rope.q_offsets = params_.rope.k_offsets = {};
    params_.rope.q_offset = params_.rope.k_offset = 0;
    params_.rope.cos = random(from.rope.cos.dtype, {kKeys, columns}, 1);
    params_.rope.sin = random(from.rope.sin.dtype, {kKeys, columns}, 1);
  }
  if (like.direction == Direction::backward) {
    const DType dtype = like.dout.dtype;
    dout_ = random(dtype, {kBatch, q_heads_, queries_, like.v_head_dim}, 1);
    if (features.has(Feature::dlse)) dlse_ = random(DType::f32, {kBatch, q_heads_, queries_}, 1);
  }
}

SmallCase::Results SmallCase::make_results() {
  const DType out = like_.direction == Direction::forward ? like_.out.dtype : like_.saved_out.dtype;
  Results r;
  r.out = tensor(out, {kBatch, q_heads_, queries_, like_.v_head_dim});
  r.lse = tensor(DType::f32, {kBatch, q_heads_, queries_});
  if (like_.direction == Direction::forward) return r;
  r.dq = tensor(like_.q().dtype, {kBatch, q_heads_, queries_, like_.head_dim});
  r.dk = tensor(like_.k().dtype, {kBatch, kv_heads_, kKeys, like_.head_dim});
  r.dv = tensor(like_.v().dtype, {kBatch, kv_heads_, kKeys, like_.v_head_dim});
  return r;
}

Status SmallCase::execute(const Kernel& kernel, const Problem& problem) {
  if (const Refusal refusal = kernel.supports(on_device(problem, device_for(kernel, like_)));
      !refusal.serves())
    return {StatusCode::internal, std::string(kernel.id) + ": " + render(refusal)};
  if (const DeviceQueue* queue = queue_of(device_for(kernel, like_)))
    return execute_on(*queue, kernel, problem);
  // Two workers, so that the division of work is part of what is checked.
  constexpr int kWorkers = 2;
  ThreadPool pool;
  pool.threads = kWorkers;
  pool.run = [](void*, void (*task)(void*, int), void* arg) {
    for (int worker = 0; worker < kWorkers; ++worker) task(arg, worker);
  };
  const std::size_t bytes = kernel.workspace_bytes(problem, pool.threads);
  constexpr std::size_t kAlignment = 64;
  const auto buffer = std::make_unique<std::byte[]>(bytes + kAlignment);
  std::memset(buffer.get(), 0xFF, bytes + kAlignment);
  void* aligned = buffer.get();
  std::size_t space = bytes + kAlignment;
  std::align(kAlignment, bytes, aligned, space);
  Launch launch;
  launch.workspace = static_cast<std::byte*>(aligned);
  launch.pool = &pool;
  return kernel.run(problem, launch);
}

Status SmallCase::execute_on(const DeviceQueue& queue, const Kernel& kernel,
                             const Problem& problem) {
  const Device device = device_for(kernel, like_);
  Problem moved = on_device(problem, device);
  // One allocation for all tensors and the workspace, one copy in each direction.
  std::vector<std::size_t> offsets;
  std::size_t bytes = 0;
  for (const Block& block : storage_) {
    offsets.push_back(bytes);
    bytes += aligned(block.bytes);
  }
  const std::size_t workspace_offset = bytes;
  bytes += aligned(kernel.workspace_bytes(moved, 1));
  std::vector<std::byte> image(bytes, std::byte{0xFF});
  for (std::size_t n = 0; n < storage_.size(); ++n)
    std::memcpy(image.data() + offsets[n], storage_[n].data.get(), storage_[n].bytes);

  const Result<void*> stream = queue.own_stream(device.index);
  if (!stream.ok()) return stream.status();
  const DeviceMemory memory(queue, device.index, bytes);
  FOVEA_RETURN_IF_ERROR(memory.status());
  for_each_pointer(moved, [&](auto& data) {
    for (std::size_t n = 0; n < storage_.size(); ++n)
      if (data == storage_[n].data.get()) {
        data = memory.data() + offsets[n];
        return;
      }
  });
  Launch launch;
  launch.stream = *stream;
  launch.workspace = memory.data() + workspace_offset;
  FOVEA_RETURN_IF_ERROR(queue.upload(device.index, memory.data(), image.data(), bytes));
  FOVEA_RETURN_IF_ERROR(kernel.run(moved, launch));
  FOVEA_RETURN_IF_ERROR(queue.synchronize(device.index, *stream));
  FOVEA_RETURN_IF_ERROR(queue.download(device.index, image.data(), memory.data(), bytes));
  for (std::size_t n = 0; n < storage_.size(); ++n)
    std::memcpy(storage_[n].data.get(), image.data() + offsets[n], storage_[n].bytes);
  return {};
}

Result<Problem> SmallCase::forward_problem(const Results& results) const {
  return validate(ForwardArgs{params_, results.out, results.lse});
}

Result<Problem> SmallCase::backward_problem(const Results& saved, const Results& results) const {
  BackwardArgs args;
  args.params = params_;
  args.out = saved.out;
  args.lse = saved.lse;
  args.dout = dout_;
  args.dlse = dlse_;
  args.dq = results.dq;
  args.dk = results.dk;
  args.dv = results.dv;
  return validate(args, like_.deterministic);
}

bool SmallCase::served_by(const Kernel& kernel) {
  const Results results = make_results();
  const Result<Problem> problem = kernel.direction == Direction::forward
                                      ? forward_problem(results)
                                      : backward_problem(results, results);
  return problem.ok() && kernel.supports(on_device(*problem, device_for(kernel, like_))).serves();
}

Status SmallCase::run_forward(const Kernel& kernel, const Results& results) {
  Result<Problem> problem = forward_problem(results);
  if (!problem.ok()) return problem.status();
  return execute(kernel, *problem);
}

Status SmallCase::run_backward(const Kernel& kernel, const Results& saved, const Results& results) {
  Result<Problem> problem = backward_problem(saved, results);
  if (!problem.ok()) return problem.status();
  return execute(kernel, *problem);
}

Result<double> SmallCase::compare(const Kernel& kernel, const Kernel& oracle) {
  const Results got = make_results(), want = make_results();
  if (kernel.direction == Direction::forward) {
    FOVEA_RETURN_IF_ERROR(run_forward(oracle, want));
    FOVEA_RETURN_IF_ERROR(run_forward(kernel, got));
    return std::max(distance(got.out, want.out, true), distance(got.lse, want.lse, false));
  }
  const std::string forward_id =
      std::string(oracle.id).substr(0, std::string(oracle.id).rfind('.')) + ".forward";
  const Kernel* forward = find_kernel(forward_id);
  if (forward == nullptr)
    return Status(StatusCode::internal, "no " + forward_id + " to check backward kernels with");
  FOVEA_RETURN_IF_ERROR(run_forward(*forward, want));
  FOVEA_RETURN_IF_ERROR(run_backward(oracle, want, want));
  FOVEA_RETURN_IF_ERROR(run_backward(kernel, want, got));
  return std::max({distance(got.dq, want.dq, true), distance(got.dk, want.dk, true),
                   distance(got.dv, want.dv, true)});
}

}  // namespace fovea
