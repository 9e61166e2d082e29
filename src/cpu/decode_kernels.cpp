// The decode kernels as rows of the kernel table: what they serve, the memory they need, how their
// phases are run. Compiled for every machine; the work is in decode_forward.cpp.
#include "cpu/isa.h"
#include "cpu/scratch_layout.h"

namespace fovea::cpu {
namespace {

std::int64_t rows_of(const Problem& p) { return p.kv_heads > 0 ? p.group() * p.q_len : 0; }

/// Keys of a task, by the length alone: the order of sums depends on it, and a sequence is to give
/// the same bits in every batch.
std::int64_t decode_chunk(const Problem& p) {
  constexpr std::int64_t kLongest = 512, kShortest = 128, kEnoughTasks = 32;
  std::int64_t keys = kLongest;
  while (keys > kShortest && ceil_div(p.kv_len, keys) < kEnoughTasks) keys /= 2;
  return keys;
}

DecodeScratch decode_layout(const Problem& p) {
  const std::int64_t rows = rows_of(p);
  Layout layout;
  DecodeScratch s{};
  s.queries = layout.take(rows * p.head_dim);
  s.scores = layout.take(rows * kPanel);
  s.bias = layout.take(p.features.has(Feature::additive_mask) ? rows * kPanel : 0);
  s.keys = layout.take(kPanel * p.head_dim);
  s.values = layout.take(kPanel * p.v_head_dim);
  s.sums = layout.take(round_up_to(p.v_head_dim, kPadding));
  s.floats = layout.floats();
  return s;
}

/// What the workers share; places in floats.
struct DecodeShared {
  std::int64_t maxima, weights, sums, floats;
};
DecodeShared decode_shared(const Problem& p) {
  const std::int64_t rows = p.batch * p.kv_heads * ceil_div(p.kv_len, decode_chunk(p)) * rows_of(p);
  Layout layout;
  DecodeShared s{};
  s.maxima = layout.take(rows);
  s.weights = layout.take(rows);
  s.sums = layout.take(rows * round_up_to(p.v_head_dim, kPadding));
  s.floats = layout.floats();
  return s;
}

Refusal supports(const Problem& p) {
  // First, because what is beyond this is another kernel's task.
  if (p.q_len > kDecodeMaxQueries)
    return Refusal::because(RefusalCode::q_len, p.q_len, kDecodeMaxQueries);
  if (rows_of(p) > kDecodeMaxRows)
    return Refusal::because(RefusalCode::query_rows, rows_of(p), kDecodeMaxRows);
  return supports_flash(p);
}

std::size_t workspace_bytes(const Problem& p, int threads) {
  return static_cast<std::size_t>(decode_layout(p).floats * threads + decode_shared(p).floats) *
         sizeof(float);
}

Status run(const Problem& p, const Launch& launch, const DecodeWorkers& workers) {
  auto* workspace = reinterpret_cast<float*>(launch.workspace);
  const DecodeShared shared = decode_shared(p);
  DecodeArgs args{};
  static_cast<Call&>(args) = plain_call(p);
  args.out = sink_like_out(p, p.out_segments);
  args.lse = rows_of_heads<float*>(p, p.lse);
  args.rows = rows_of(p);
  args.chunk = decode_chunk(p);
  args.chunks = ceil_div(p.kv_len, args.chunk);
  args.workers = launch.pool->threads;
  args.maxima = workspace + shared.maxima;
  args.weights = workspace + shared.weights;
  args.sums = workspace + shared.sums;
  args.sums_row = round_up_to(p.v_head_dim, kPadding);
  args.scratch = workspace + shared.floats;
  args.layout = decode_layout(p);
  if (p.batch * p.kv_heads * args.rows == 0) return {};
  if (args.chunks > 0) run_on(*launch.pool, workers.decode, &args);
  args.next_task = 0;
  run_on(*launch.pool, workers.merge, &args);
  return {};
}

template <Isa kIsa>
Refusal available(const Device&) {
  return isa_available(kIsa);
}

constexpr DecodeWorkers kBaseline = {decode_baseline, decode_merge_baseline};
#if defined(__x86_64__)
constexpr DecodeWorkers kAvx2 = {decode_avx2, decode_merge_avx2};
constexpr DecodeWorkers kAvx512 = {decode_avx512, decode_merge_avx512};
#endif

template <const DecodeWorkers& kWorkers>
Status run_with(const Problem& problem, const Launch& launch) {
  return run(problem, launch, kWorkers);
}

template <Isa kIsa, const DecodeWorkers& kWorkers>
constexpr Kernel decode_kernel(const char* id) {
  return {id,    "cpu",           "flash",  Direction::forward, DeviceType::cpu,
          false, available<kIsa>, supports, workspace_bytes,    run_with<kWorkers>,
          true};
}

}  // namespace
}  // namespace fovea::cpu

namespace fovea {

extern const Kernel cpu_portable_decode_forward;
const Kernel cpu_portable_decode_forward =
    cpu::decode_kernel<cpu::Isa::portable, cpu::kBaseline>("cpu.portable_decode.forward");

#if defined(__x86_64__)
extern const Kernel cpu_avx2_decode_forward, cpu_avx512_decode_forward;
const Kernel cpu_avx2_decode_forward =
    cpu::decode_kernel<cpu::Isa::avx2, cpu::kAvx2>("cpu.avx2_decode.forward");
const Kernel cpu_avx512_decode_forward =
    cpu::decode_kernel<cpu::Isa::avx512, cpu::kAvx512>("cpu.avx512_decode.forward");
#endif

}  // namespace fovea
