// Calls: forward, backward, plans that are reused, merging of partial results.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include <fovea/attention.h>
#include <fovea/export.h>
#include <fovea/report.h>
#include <fovea/status.h>

namespace fovea {

/// A caller's thread pool for CPU kernels. `run` calls task(arg, worker) once for every worker in
/// [0, threads), concurrently or one after the other, and returns when all have returned.
struct ThreadPool {
  int threads = 1;
  void* self = nullptr;
  void (*run)(void* self, void (*task)(void* arg, int worker), void* arg) = nullptr;

  /// Runs everything in the calling thread.
  static ThreadPool inline_calls() {
    ThreadPool pool;
    pool.run = [](void*, void (*task)(void*, int), void* arg) { task(arg, 0); };
    return pool;
  }
};

/// Which kernel may serve. Order of authority: these fields, then FOVEA_KERNEL / FOVEA_BACKEND,
/// then a measured choice (PlanOptions::autotune), then priority. FOVEA_CPU_ISA (portable, avx2,
/// avx512, avx512bf16 or amxbf16; read once) is the best instruction set that any of them may use.
struct Choice {
  std::string kernel;   ///< an id, "cpu.avx512.forward"; cannot serve = error with the reason
  std::string backend;  ///< "cpu", "cuda", ... or a family: "flash", "unfused", "reference"
  bool strict = false;  ///< an error instead of any fallback
};

/// How a plan is made. Results of CPU kernels never depend on `num_threads`.
struct PlanOptions {
  Choice choice;
  bool deterministic = false;  ///< ask for bitwise repeatable gradients where that is a choice
  bool self_check = true;      ///< check the kernel against the oracle before it first serves
  /// Measure the kernels that serve, once for each class of calls, and take the fastest; see
  /// Report::tuned. Where a kernel is chosen by name, that stands. The choices are kept in
  /// FOVEA_CACHE_DIR, else XDG_CACHE_HOME/fovea, else ~/.cache/fovea.
  bool autotune = false;
  int num_threads = 0;               ///< CPU workers; 0 = FOVEA_NUM_THREADS, else the usable cores
  const ThreadPool* pool = nullptr;  ///< CPU: run there instead; `self` must outlive the plan
};

/// A caller's allocator, asked by a run for exactly the workspace that its plan needs, so that
/// callers need not plan to know the size. The memory is as `RunOptions::workspace` says, stays
/// valid until the run has finished on its stream, and remains the caller's. Null: no memory.
struct WorkspaceSource {
  void* self = nullptr;
  void* (*allocate)(void* self, std::size_t bytes) = nullptr;
};

/// Where and with what one run happens.
struct RunOptions {
  void* stream = nullptr;     ///< CUDA: cudaStream_t; not synchronised
  void* workspace = nullptr;  ///< 64-byte aligned, in the device's memory, for this run alone;
                              ///< null: the library's cached buffers (see release_cached_memory),
                              ///< on CUDA one for each stream
  std::size_t workspace_bytes = 0;
  WorkspaceSource source;  ///< asked where `workspace` is null
  Job* job = nullptr;      ///< null: the process's job
};

/// A validated call with its kernel chosen and its workspace known.
///
/// run() takes the arguments the plan was made with, except that data pointers, dropout seed and
/// offset and RoPE offsets may differ. It does not allocate (with a caller's workspace), read the
/// environment or synchronise, and may be called from several threads at once. On CUDA, without a
/// caller's workspace, a run that needs more than any before it on its stream allocates device
/// memory, which may wait for the device; and where more runs are outstanding than ever before,
/// their notes take host memory.
///
/// A CUDA stream may record a graph: with a caller's workspace, and with plans made before, since a
/// self-check waits for the device. Replays are counted (KernelCount::replayed) and proved to the
/// job of the run, which for this is remembered as long as the process lives; every 512 such runs
/// take 4 KB of the device's memory.
class Plan {
 public:
  FOVEA_API static Result<Plan> make(const ForwardArgs& args, const PlanOptions& options = {});
  FOVEA_API static Result<Plan> make(const BackwardArgs& args, const PlanOptions& options = {});

  FOVEA_API Status run(const ForwardArgs& args, const RunOptions& options = {}) const;
  FOVEA_API Status run(const BackwardArgs& args, const RunOptions& options = {}) const;

  /// Bytes of scratch memory beyond inputs, outputs and LSE.
  [[nodiscard]] FOVEA_API std::size_t workspace_bytes() const;
  [[nodiscard]] FOVEA_API const Report& report() const;

 private:
  struct State;
  explicit Plan(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

struct CallOptions {
  PlanOptions plan;
  RunOptions run;
};

/// Plan and run, through a small cache of plans. `report` (optional) receives how it was served.
FOVEA_API Status forward(const ForwardArgs& args, const CallOptions& options = {},
                         Report* report = nullptr);
FOVEA_API Status backward(const BackwardArgs& args, const CallOptions& options = {},
                          Report* report = nullptr);

/// Frees the workspaces, plans and measured choices that are kept for reuse (choices stay in their
/// file). Waits for devices that still use one.
FOVEA_API void release_cached_memory();

/// Where a merge happens.
struct MergeOptions {
  void* stream = nullptr;  ///< CUDA: cudaStream_t; not synchronised
};

/// One of several results over disjoint sets of keys, computed without the sink.
struct PartialResult {
  TensorView out;  ///< [batch, q_heads, q_len, v_head_dim], f32, f16 or bf16
  TensorView lse;  ///< [batch, q_heads, q_len], f32; -inf where nothing was seen
};

/// Merges partial results: lse = log sum exp lse_n [+ exp sink], out = sum exp(lse_n - lse) out_n.
/// All-empty rows give out 0 and lse -inf (the sink's value). `sinks` [q_heads] and `lse` are
/// optional. Outputs may not overlap inputs. All tensors are on one device.
FOVEA_API Status merge_partials(std::span<const PartialResult> parts, const TensorView& sinks,
                                const MutableTensorView& out, const MutableTensorView& lse,
                                const MergeOptions& options = {});

}  // namespace fovea
