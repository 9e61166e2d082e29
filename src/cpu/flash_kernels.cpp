// The flash kernels as rows of the kernel table: what they serve, the memory they need, how their
// phases are run. Compiled for every machine; the work is in flash_forward.cpp and
// flash_backward.cpp.
#include <algorithm>
#include <iterator>

#include "contract/elements.h"
#include "cpu/isa.h"
#include "cpu/problem_args.h"
#include "cpu/scratch_layout.h"

namespace fovea::cpu {
namespace {

/// What the packed queries and sums of a task may take of the L2 cache.
constexpr std::int64_t kTaskBytes = std::int64_t{512} << 10;

/// Floats that a packed or staged row of `dim` elements takes, or two such rows as bf16 in whole
/// tile registers.
std::int64_t row_floats(std::int64_t dim) { return round_up_to(dim, 32); }

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
  static_assert(kForwardSpan <= 2 * kForwardKeys);  // rows of bf16, words of values
  const std::int64_t v_width = round_up_to(p.v_head_dim, kPadding);
  Layout layout;
  ForwardScratch s{};
  s.queries = layout.take(rows * row_floats(p.head_dim));
  s.sums = layout.take(rows * v_width);
  s.scores = layout.take(kForwardKeys * kScoresRow);
  s.probabilities = layout.take(p.compute == DType::bf16 ? kForwardSpan / 2 * kScoresRow : 0);
  s.bias = layout.take(p.features.has(Feature::additive_mask) ? kForwardKeys * kScoresRow : 0);
  s.values = layout.take(kForwardKeys * v_width);
  s.keys = layout.take(kForwardKeys * row_floats(p.head_dim));
  s.staged = layout.take(kForwardKeys * row_floats(std::max(p.head_dim, p.v_head_dim)));
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
  static_cast<Call&>(args) = plain_call(p);
  args.out = sink_like_out(p, p.out_segments);
  args.lse = rows_of_heads<float*>(p, p.lse);
  args.task_rows = forward_task_rows(p, launch.pool->threads);
  args.tasks = p.batch * p.q_heads * ceil_div(p.q_len, args.task_rows);
  args.last_rows_first = args.band.left == kUnbounded && args.band.right != kUnbounded;
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
  s.keys_across = layout.take(keys * row_floats(p.head_dim));
  s.values_across = layout.take(keys * row_floats(p.v_head_dim));
  s.keys = layout.take(keys * width);
  s.queries = layout.take(kBackwardRows * width);
  s.douts = layout.take(kBackwardRows * v_width);
  s.queries_rows = layout.take(kBackwardRows * row_floats(p.head_dim));
  s.douts_rows = layout.take(kBackwardRows * row_floats(p.v_head_dim));
  s.staged = layout.take(keys * row_floats(std::max(p.head_dim, p.v_head_dim)));
  s.bias = layout.take(p.features.has(Feature::additive_mask) ? kBackwardRows * kPanel : 0);
  s.dmask = layout.take(p.dmask.present() ? 2 * kBackwardRows * keys : 0);
  s.dk = layout.take(keys * width);
  s.dv = layout.take(keys * v_width);
  s.probabilities = layout.take(kBackwardRows * kScoresRow);
  s.gradients = layout.take(kBackwardRows * (keys + kBackwardGap));
  s.products = layout.take(p.compute == DType::bf16 ? kBackwardRows * kScoresRow : 0);
  s.floats = layout.floats();
  return s;
}

std::int64_t backward_row_tiles(const Problem& p) { return ceil_div(p.q_len, kBackwardRows); }
std::int64_t backward_key_tasks(const Problem& p) {
  return p.batch * p.kv_heads * ceil_div(p.kv_len, backward_key_tile(p));
}

bool wants_weights(const MutableOperand& gradient) {
  return std::any_of(std::begin(gradient.segments), std::end(gradient.segments),
                     [](const auto& segment) { return segment.norm_weight.present(); });
}

/// Whether dq can hold the sums itself: f32, rows of adjoining columns, nothing left to do.
bool sums_fit_dq(const Problem& p) {
  const MutableTensorView& dq = p.dq.segments[0].tensor;
  return p.params.q.count == 1 && dq.present() && dq.dtype == DType::f32 &&
         dq.strides[static_cast<std::size_t>(dq.rank - 1)] == 1 &&
         !p.features.has(Feature::qk_norm) && !p.features.has(Feature::rope);
}

/// What the workers share; places in floats.
struct BackwardShared {
  std::int64_t delta, turns, dq_sums, dsinks, dq_weights, dk_weights, floats;
};
BackwardShared backward_shared(const Problem& p) {
  const std::int64_t heads = p.batch * p.q_heads, rows = heads * p.q_len;
  const std::int64_t row_tasks = heads * backward_row_tiles(p);
  const std::int64_t weights = kMostSegments * p.head_dim;
  Layout layout;
  BackwardShared s{};
  s.delta = layout.take(rows);
  s.turns = layout.take(row_tasks);
  s.dq_sums = layout.take(wanted(p.dq) && !sums_fit_dq(p) ? rows * p.head_dim : 0);
  s.dsinks = layout.take(p.dsinks.present() ? 2 * row_tasks : 0);
  s.dq_weights = layout.take(wants_weights(p.dq) ? row_tasks * weights : 0);
  s.dk_weights = layout.take(wants_weights(p.dk) ? backward_key_tasks(p) * weights : 0);
  s.floats = layout.floats();
  return s;
}

std::size_t backward_workspace(const Problem& p, int threads) {
  const BackwardScratch s = backward_layout(p, backward_key_tile(p));
  return static_cast<std::size_t>(s.floats * threads + backward_shared(p).floats) * sizeof(float);
}

/// Adds up what tasks left of the gradients of norm weights, in their order.
void store_weights(const MutableOperand& gradient, const float* shares, std::int64_t tasks,
                   std::int64_t width) {
  for (int n = 0; n < kMostSegments; ++n) {
    const MutableTensorView& to = gradient.segments[n].norm_weight;
    if (!to.present()) continue;
    for (std::int64_t d = 0; d < width; ++d) {
      double sum = 0;
      for (std::int64_t task = 0; task < tasks; ++task)
        sum += static_cast<double>(shares[(task * kMostSegments + n) * width + d]);
      store_element(to.data, to.dtype, d * to.strides[0], sum);
    }
  }
}

/// dsink [q_heads] from the shares of the tiles of rows [batch, q_heads, row tiles].
void store_dsinks(const Problem& p, const double* shares) {
  const std::int64_t tiles = backward_row_tiles(p);
  for (std::int64_t h = 0; h < p.q_heads; ++h) {
    double sum = 0;
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t t = 0; t < tiles; ++t) sum += shares[(b * p.q_heads + h) * tiles + t];
    store_element(p.dsinks.data, p.dsinks.dtype, h * p.dsinks.strides[0], sum);
  }
}

BackwardArgs backward_args(const Problem& p, float* workspace) {
  BackwardArgs args{};
  static_cast<Call&>(args) = plain_call(p);
  args.out = source_like_out(p, p.saved_out_segments);
  args.dout = source_like_out(p, p.dout_segments);
  args.lse = rows_of_heads<const float*>(p, p.saved_lse);
  args.dlse = rows_of_heads<const float*>(p, p.dlse);
  args.dq = sink_of_gradient(p.dq, args.q);
  args.dk = sink_of_gradient(p.dk, args.k);
  args.dv = sink_of_gradient(p.dv, args.v);
  args.dmask = mask_sink(p);
  args.wants_dq = wanted(p.dq);
  args.wants_dk = wanted(p.dk);
  args.wants_dv = wanted(p.dv);
  args.key_tile = backward_key_tile(p);
  args.row_tiles = backward_row_tiles(p);
  args.key_tiles = ceil_div(p.kv_len, args.key_tile);
  args.layout = backward_layout(p, args.key_tile);

  const BackwardShared shared = backward_shared(p);
  args.delta = workspace + shared.delta;
  args.turns = reinterpret_cast<std::uint32_t*>(workspace + shared.turns);
  args.sums_in_dq = sums_fit_dq(p);
  if (args.sums_in_dq) {
    const Segment<char*>& dq = args.dq.segments.at[0];
    args.dq_sums = {reinterpret_cast<float*>(dq.data), dq.batch, dq.head, dq.row, 1};
  } else {
    args.dq_sums = {workspace + shared.dq_sums, p.q_heads * p.q_len * p.head_dim,
                    p.q_len * p.head_dim, p.head_dim, 1};
  }
  if (p.dsinks.present()) args.dsinks = reinterpret_cast<double*>(workspace + shared.dsinks);
  if (wants_weights(p.dq)) args.dq_weights = workspace + shared.dq_weights;
  if (wants_weights(p.dk)) args.dk_weights = workspace + shared.dk_weights;
  args.scratch = workspace + shared.floats;
  return args;
}

Status run_backward(const Problem& p, const Launch& launch, const FlashWorkers& workers) {
  BackwardArgs args = backward_args(p, reinterpret_cast<float*>(launch.workspace));
  const auto phase = [&](void (*work)(void*, int)) {
    args.next_task = 0;
    run_on(*launch.pool, work, &args);
  };
  const std::int64_t row_tasks = p.batch * p.q_heads * args.row_tiles;
  if (row_tasks > 0) phase(workers.backward_prepare);
  if (backward_key_tasks(p) > 0) phase(workers.backward);
  if (row_tasks > 0 && args.wants_dq && !args.sums_in_dq) phase(workers.backward_store_dq);
  if (args.dmask.data != nullptr) phase(workers.backward_dmask);
  if (args.dsinks != nullptr) store_dsinks(p, args.dsinks);
  store_weights(p.dq, args.dq_weights, row_tasks, p.head_dim);
  store_weights(p.dk, args.dk_weights, backward_key_tasks(p), p.head_dim);
  return {};
}

template <Isa kIsa>
Refusal available(const Device&) {
  return isa_available(kIsa);
}

constexpr FlashWorkers kBaseline = {flash_forward_baseline, flash_backward_prepare_baseline,
                                    flash_backward_baseline, flash_backward_store_dq_baseline,
                                    flash_backward_dmask_baseline};
#if defined(__x86_64__)
constexpr FlashWorkers kAvx2 = {flash_forward_avx2, flash_backward_prepare_avx2,
                                flash_backward_avx2, flash_backward_store_dq_avx2,
                                flash_backward_dmask_avx2};
constexpr FlashWorkers kAvx512 = {flash_forward_avx512, flash_backward_prepare_avx512,
                                  flash_backward_avx512, flash_backward_store_dq_avx512,
                                  flash_backward_dmask_avx512};
constexpr FlashWorkers kAmxBf16 = {flash_forward_amxbf16, flash_backward_prepare_amxbf16,
                                   flash_backward_amxbf16, flash_backward_store_dq_amxbf16,
                                   flash_backward_dmask_amxbf16};
constexpr FlashWorkers kAvx512Bf16 = {flash_forward_avx512bf16, flash_backward_prepare_avx512bf16,
                                      flash_backward_avx512bf16, flash_backward_store_dq_avx512bf16,
                                      flash_backward_dmask_avx512bf16};
#endif

/// Whether products are of bf16 pairs.
constexpr bool pairs(Isa isa) { return isa == Isa::avx512bf16 || isa == Isa::amxbf16; }

template <Isa kIsa>
Refusal supports(const Problem& problem) {
  if (pairs(kIsa) && problem.compute != DType::bf16)
    return Refusal::because(RefusalCode::compute_dtype, static_cast<std::int64_t>(problem.compute),
                            0, "bf16");
  return supports_flash(problem);
}

template <Isa kIsa>
Refusal steps_back(const Device&) {
  if (kIsa != Isa::avx512bf16 || !pairs_are_slow()) return Refusal::accept();
  return Refusal::because(RefusalCode::other,
                          "this CPU multiplies pairs of bf16 at half the speed of f32");
}

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
  return {id,          "cpu",           "flash",        Direction::forward, DeviceType::cpu,
          false,       available<kIsa>, supports<kIsa>, forward_workspace,  forward<kWorkers>,
          pairs(kIsa), nullptr,         nullptr,        steps_back<kIsa>};
}
template <Isa kIsa, const FlashWorkers& kWorkers>
constexpr Kernel backward_kernel(const char* id) {
  return {id,          "cpu",           "flash",        Direction::backward, DeviceType::cpu,
          false,       available<kIsa>, supports<kIsa>, backward_workspace,  backward<kWorkers>,
          pairs(kIsa), nullptr,         nullptr,        steps_back<kIsa>};
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
extern const Kernel cpu_avx2_forward, cpu_avx2_backward, cpu_avx512_forward, cpu_avx512_backward,
    cpu_avx512bf16_forward, cpu_avx512bf16_backward, cpu_amxbf16_forward, cpu_amxbf16_backward;
const Kernel cpu_avx2_forward = cpu::forward_kernel<cpu::Isa::avx2, cpu::kAvx2>("cpu.avx2.forward");
const Kernel cpu_avx2_backward =
    cpu::backward_kernel<cpu::Isa::avx2, cpu::kAvx2>("cpu.avx2.backward");
const Kernel cpu_avx512_forward =
    cpu::forward_kernel<cpu::Isa::avx512, cpu::kAvx512>("cpu.avx512.forward");
const Kernel cpu_avx512_backward =
    cpu::backward_kernel<cpu::Isa::avx512, cpu::kAvx512>("cpu.avx512.backward");
const Kernel cpu_avx512bf16_forward =
    cpu::forward_kernel<cpu::Isa::avx512bf16, cpu::kAvx512Bf16>("cpu.avx512bf16.forward");
const Kernel cpu_avx512bf16_backward =
    cpu::backward_kernel<cpu::Isa::avx512bf16, cpu::kAvx512Bf16>("cpu.avx512bf16.backward");
const Kernel cpu_amxbf16_forward =
    cpu::forward_kernel<cpu::Isa::amxbf16, cpu::kAmxBf16>("cpu.amxbf16.forward");
const Kernel cpu_amxbf16_backward =
    cpu::backward_kernel<cpu::Isa::amxbf16, cpu::kAmxBf16>("cpu.amxbf16.backward");
#endif

}  // namespace fovea
