// The flash kernels as rows of the kernel table: what they serve, the memory they need, how their
// phases are run. Compiled for every machine; the work is in flash_forward.cpp and
// flash_backward.cpp.
#include <algorithm>

#include "cpu/isa.h"
#include "cpu/problem_args.h"

namespace fovea::cpu {
namespace {

/// What the packed queries and sums of a task may take of the L2 cache.
constexpr std::int64_t kTaskBytes = std::int64_t{512} << 10;

/// Hands out parts of a worker's scratch, or of the workspace, in floats; each begins a cache line.
class Layout {
 public:
  std::int64_t take(std::int64_t floats) {
    const std::int64_t at = used_;
    used_ += round_up_to(floats, 16);
    return at;
  }
  [[nodiscard]] std::int64_t floats() const { return used_; }

 private:
  std::int64_t used_ = 0;
};

// Forward.

/// Rows of a task: as many as share the packing of keys and values well, yet leave enough tasks to
/// go round. Results do not depend on it.
std::int64_t forward_task_rows(const Problem& p, int threads) {
  const std::int64_t row_bytes = (p.head_dim + round_up_to(p.v_head_dim, kPadding)) * 4;
  std::int64_t rows = kForwardMaxRows;
  while (rows > kPanel &&
         (rows / 2 >= p.q_len || rows * row_bytes > kTaskBytes ||
          p.batch * p.q_heads * ceil_div(p.q_len, rows) < std::int64_t{8} * threads))
    rows /= 2;
  return rows;
}

ForwardScratch forward_layout(const Problem& p, std::int64_t rows) {
  const std::int64_t v_width = round_up_to(p.v_head_dim, kPadding);
  Layout layout;
  ForwardScratch s{};
  s.queries = layout.take(rows * p.head_dim);
  s.sums = layout.take(rows * v_width);
  s.scores = layout.take(kForwardKeys * kScoresRow);
  s.values = layout.take(kForwardKeys * v_width);
  s.keys = layout.take(kForwardKeys * p.head_dim);
  s.maxima = layout.take(rows);
  s.weights = layout.take(rows);
  s.rescale = layout.take(rows);
  s.floats = layout.floats();
  return s;
}

std::size_t forward_workspace(const Problem& p, int threads) {
  const ForwardScratch s = forward_layout(p, forward_task_rows(p, threads));
  return static_cast<std::size_t>(s.floats * threads) * sizeof(float);
}

Status run_forward(const Problem& p, const Launch& launch, const FlashWorkers& workers) {
  ForwardArgs args{};
  static_cast<DenseArgs&>(args) = dense_args(p);
  args.out = output(p.out);
  args.lse = output(p.lse);
  args.task_rows = forward_task_rows(p, launch.pool->threads);
  args.tasks = p.batch * p.q_heads * ceil_div(p.q_len, args.task_rows);
  args.last_rows_first = args.band.below == kUnbounded && args.band.above != kUnbounded;
  args.scratch = reinterpret_cast<float*>(launch.workspace);
  args.layout = forward_layout(p, args.task_rows);
  if (args.tasks > 0) run_on(*launch.pool, workers.forward, &args);
  return {};
}

// Backward.

/// Keys of a task, by the shape alone: the order of sums in dQ depends on it.
std::int64_t backward_key_tile(const Problem& p) {
  const std::int64_t width = std::max(p.head_dim, p.v_head_dim);
  std::int64_t keys = width <= 128 ? kBackwardMaxKeys : width <= 256 ? 128 : 64;
  constexpr std::int64_t kEnoughTasks = 32;
  while (keys > kPanel && p.batch * p.kv_heads * ceil_div(p.kv_len, keys) < kEnoughTasks) keys /= 2;
  return keys;
}

BackwardScratch backward_layout(const Problem& p, std::int64_t keys) {
  const std::int64_t width = round_up_to(p.head_dim, kPadding);
  const std::int64_t v_width = round_up_to(p.v_head_dim, kPadding);
  Layout layout;
  BackwardScratch s{};
  s.keys_across = layout.take(keys * p.head_dim);
  s.values_across = layout.take(keys * p.v_head_dim);
  s.keys = layout.take(keys * width);
  s.queries = layout.take(kBackwardRows * width);
  s.douts = layout.take(kBackwardRows * v_width);
  s.queries_rows = layout.take(kBackwardRows * p.head_dim);
  s.douts_rows = layout.take(kBackwardRows * p.v_head_dim);
  s.dk = layout.take(keys * width);
  s.dv = layout.take(keys * v_width);
  s.probabilities = layout.take(kBackwardRows * kScoresRow);
  s.gradients = layout.take(kBackwardRows * (keys + kBackwardGap));
  s.floats = layout.floats();
  return s;
}

/// What the workers share: delta and turns, and dQ's sums where dq cannot take them.
struct BackwardShared {
  std::int64_t delta, turns, dq_sums, floats;
  bool sums_in_dq;
};
BackwardShared backward_shared(const Problem& p) {
  const std::int64_t rows = p.batch * p.q_heads * p.q_len;
  const Output dq = output(p.dq);
  Layout layout;
  BackwardShared s{};
  s.delta = layout.take(rows);
  s.turns = layout.take(p.batch * p.q_heads * ceil_div(p.q_len, kBackwardRows));
  s.sums_in_dq = dq.data == nullptr || dq.column == 1;
  s.dq_sums = layout.take(s.sums_in_dq ? 0 : rows * p.head_dim);
  s.floats = layout.floats();
  return s;
}

std::size_t backward_workspace(const Problem& p, int threads) {
  const BackwardScratch s = backward_layout(p, backward_key_tile(p));
  return static_cast<std::size_t>(s.floats * threads + backward_shared(p).floats) * sizeof(float);
}

Status run_backward(const Problem& p, const Launch& launch, const FlashWorkers& workers) {
  BackwardArgs args{};
  static_cast<DenseArgs&>(args) = dense_args(p);
  args.out = input(p.saved_out);
  args.dout = input(p.dout);
  args.lse = input(p.saved_lse);
  args.dlse = input(p.dlse);
  args.dq = output(p.dq);
  args.dk = output(p.dk);
  args.dv = output(p.dv);
  args.key_tile = backward_key_tile(p);
  args.row_tiles = ceil_div(p.q_len, kBackwardRows);
  args.key_tiles = ceil_div(p.kv_len, args.key_tile);
  args.layout = backward_layout(p, args.key_tile);

  auto* floats = reinterpret_cast<float*>(launch.workspace);
  const BackwardShared shared = backward_shared(p);
  args.delta = floats + shared.delta;
  args.turns = reinterpret_cast<std::uint32_t*>(floats + shared.turns);
  args.dq_sums = shared.sums_in_dq
                     ? args.dq
                     : Output{floats + shared.dq_sums, p.q_heads * p.q_len * p.head_dim,
                              p.q_len * p.head_dim, p.head_dim, 1};
  args.scratch = floats + shared.floats;

  const std::int64_t rows = p.batch * p.q_heads * args.row_tiles;
  if (rows > 0) run_on(*launch.pool, workers.backward_prepare, &args);
  args.next_task = 0;
  if (p.batch * p.kv_heads * args.key_tiles > 0) run_on(*launch.pool, workers.backward, &args);
  args.next_task = 0;
  if (rows > 0 && !shared.sums_in_dq) run_on(*launch.pool, workers.backward_store_dq, &args);
  return {};
}

template <Isa kIsa>
Refusal available(const Device&) {
  return isa_available(kIsa);
}

constexpr FlashWorkers kBaseline = {flash_forward_baseline, flash_backward_prepare_baseline,
                                    flash_backward_baseline, flash_backward_store_dq_baseline};
#if defined(__x86_64__)
constexpr FlashWorkers kAvx2 = {flash_forward_avx2, flash_backward_prepare_avx2,
                                flash_backward_avx2, flash_backward_store_dq_avx2};
constexpr FlashWorkers kAvx512 = {flash_forward_avx512, flash_backward_prepare_avx512,
                                  flash_backward_avx512, flash_backward_store_dq_avx512};
#endif

template <const FlashWorkers& kWorkers>
Status forward(const Problem& problem, const Launch& launch) {
  return run_forward(problem, launch, kWorkers);
}
template <const FlashWorkers& kWorkers>
Status backward(const Problem& problem, const Launch& launch) {
  return run_backward(problem, launch, kWorkers);
}

template <Isa kIsa, const FlashWorkers& kWorkers>
constexpr Kernel forward_kernel(const char* id) {
  return {id,
          "cpu",
          "flash",
          Direction::forward,
          DeviceType::cpu,
          false,
          available<kIsa>,
          supports_dense_f32,
          forward_workspace,
          forward<kWorkers>};
}
template <Isa kIsa, const FlashWorkers& kWorkers>
constexpr Kernel backward_kernel(const char* id) {
  return {id,
          "cpu",
          "flash",
          Direction::backward,
          DeviceType::cpu,
          false,
          available<kIsa>,
          supports_dense_f32,
          backward_workspace,
          backward<kWorkers>};
}

}  // namespace
}  // namespace fovea::cpu

namespace fovea {

extern const Kernel cpu_portable_forward, cpu_portable_backward;
const Kernel cpu_portable_forward =
    cpu::forward_kernel<cpu::Isa::portable, cpu::kBaseline>("cpu.portable.forward");
const Kernel cpu_portable_backward =
    cpu::backward_kernel<cpu::Isa::portable, cpu::kBaseline>("cpu.portable.backward");

#if defined(__x86_64__)
extern const Kernel cpu_avx2_forward, cpu_avx2_backward, cpu_avx512_forward, cpu_avx512_backward;
const Kernel cpu_avx2_forward = cpu::forward_kernel<cpu::Isa::avx2, cpu::kAvx2>("cpu.avx2.forward");
const Kernel cpu_avx2_backward =
    cpu::backward_kernel<cpu::Isa::avx2, cpu::kAvx2>("cpu.avx2.backward");
const Kernel cpu_avx512_forward =
    cpu::forward_kernel<cpu::Isa::avx512, cpu::kAvx512>("cpu.avx512.forward");
const Kernel cpu_avx512_backward =
    cpu::backward_kernel<cpu::Isa::avx512, cpu::kAvx512>("cpu.avx512.backward");
#endif

}  // namespace fovea
