// Reports, jobs, proof lines and counters: what really ran, and why not something else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fovea/export.h>
#include <fovea/status.h>
#include <fovea/tensor.h>

namespace fovea {

/// A kernel that was considered and not used, with the reason in words.
struct PassedOver {
  std::string kernel;
  std::string reason;
};

/// A kernel that was timed for a measured choice.
struct TunedKernel {
  std::string kernel;
  double ms = 0;  ///< one run: the median, or a single run of one that was far behind
};

/// How the choice was measured (PlanOptions::autotune), or why it was not.
struct Tuning {
  bool measured = false;             ///< for this plan
  bool known = false;                ///< for an earlier plan of this class of calls
  std::vector<TunedKernel> kernels;  ///< by priority; the choice must beat the first by 2 %
  std::string note;                  ///< why nothing was measured; trouble with the kept choices
};

/// How one plan is served.
struct Report {
  std::string kernel;  ///< e.g. "cpu.avx512.forward"
  Device device;
  std::int64_t workspace_bytes = 0;
  bool fallback = false;                ///< a preferred kernel of this machine was passed over; a
                                        ///< specialist outside its class does not count
  std::vector<PassedOver> passed_over;  ///< every better-placed kernel
  /// CUDA: operands that are copied whole to the workspace before the kernel reads them, for their
  /// layout, dtype, segments or prologue. CPU kernels stage tiles as they go, and count none.
  std::int64_t staged_copies = 0;
  bool fused_prologue = false;
  Tuning tuned;  ///< with PlanOptions::autotune
};

enum class ProofLevel : std::uint8_t {
  off,    ///< nothing is printed (the default; FOVEA_PROOF=off|proof|all changes it)
  proof,  ///< one line per job and kernel that ran; one per kernel that was refused or failed
  all,    ///< one line for every call
};

FOVEA_API void set_proof_level(ProofLevel level);
FOVEA_API ProofLevel proof_level();

/// Replaces stderr as the receiver of proof lines (without newline). Calls are serialised. An empty
/// function restores stderr.
FOVEA_API void set_proof_sink(std::function<void(std::string_view line)> sink);

namespace detail {
struct JobState;
}

/// A unit of work of the application (a request, a training run) for which each kernel is proved
/// once. Carried in Options, usable from any thread; calls without a job belong to the process's.
class Job {
 public:
  FOVEA_API explicit Job(std::string name);
  FOVEA_API ~Job();  ///< flushes
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  [[nodiscard]] FOVEA_API const std::string& name() const;
  /// Kernels that have completed in this job, or in a replay of what it recorded in a graph, in
  /// order of first completion.
  [[nodiscard]] FOVEA_API std::vector<std::string> kernels_ran() const;
  /// Counts and proves the runs that have finished on devices with streams by now. Waits for none,
  /// and says nothing of those still running: they are proved by a later look, of this job, another
  /// or none (every call on such a device, counters(), flush()), even after the job's end. The
  /// first failure of a run of this job that run() could not report, because it happened later on
  /// the device; reported once.
  FOVEA_API Status flush();

 private:
  friend struct detail::JobState;
  std::shared_ptr<detail::JobState> state_;
};

/// Job::flush() of the process's job, to which calls without a job belong.
FOVEA_API Status flush();

struct KernelCount {
  std::string kernel;
  std::uint64_t launched = 0;  ///< started or queued
  std::uint64_t captured = 0;  ///< recorded in a graph instead
  std::uint64_t replayed = 0;  ///< replays of those, seen to have finished; on a device that counts
  std::uint64_t completed = 0;  ///< seen to have finished, however long after the launch
  std::uint64_t failed = 0;
};

struct RefusalCount {
  std::string reason;  ///< the kind of refusal, e.g. "feature: dropout"
  std::uint64_t count = 0;
};

/// Process-wide counters, exact under concurrency.
struct Counters {
  std::uint64_t forward_calls = 0, backward_calls = 0;
  std::uint64_t fallbacks = 0;
  /// CUDA: tiles of 64 x 64 elements of masks that hide nothing and add nothing, so that they were
  /// looked at once, before the kernel, and not read by it. CPU kernels look at masks as they go.
  std::uint64_t mask_tiles_skipped = 0;
  std::uint64_t fused_prologues = 0;
  std::uint64_t quantized = 0;
  std::uint64_t staged_copies = 0;     ///< Report::staged_copies of all calls
  std::vector<KernelCount> kernels;    ///< those that were ever launched, and providers
  std::vector<RefusalCount> refusals;  ///< kernels passed over, by reason
};

FOVEA_API Counters counters();
FOVEA_API std::string counters_json();
FOVEA_API void reset_counters();

}  // namespace fovea
