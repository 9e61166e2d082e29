// Proof: what a job has seen complete or be passed over, and the lines that say so.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fovea/providers.h>
#include <fovea/report.h>

#include "contract/kernel.h"
#include "core/kernel_table.h"

namespace fovea {
namespace detail {

/// A job's memory, shared with its runs that are outstanding. Rows are those of the kernel table.
struct JobState {
  explicit JobState(std::string job_name) : name(std::move(job_name)) {}

  /// The state behind a job, or of the process's job.
  static const std::shared_ptr<JobState>& of(const Job* job);

  const std::string name;
  std::array<std::atomic<bool>, kMaxKernels> ran{};      ///< a "ran" line is due only once
  std::array<std::atomic<bool>, kMaxKernels> refused{};  ///< likewise a "NOT used" line
  std::mutex mutex;
  std::vector<std::string> order;           ///< ids and providers in order of first completion
  std::set<std::string> providers_refused;  ///< those whose "NOT used" line was due
  Status failure;  ///< the first of a run that failed on its device, unreported
};

}  // namespace detail

namespace proof {

/// What a line says about the call besides the kernel.
struct Subject {
  std::size_t row;  ///< of the kernel
  const Kernel* kernel;
  std::string description;  ///< "d128 bf16"
  std::string device;
};

/// Records that the kernel has finished; prints the "ran" line when it is due.
void completed(detail::JobState& job, const Subject& subject);
/// Records that a preferred kernel did not serve, or failed; prints the line when it is due.
/// `served_by` is null when nothing did.
void not_used(detail::JobState& job, const Subject& subject, const std::string& reason,
              const char* served_by);

/// The same of providers, which are no kernels of the table.
void provider_ran(detail::JobState& job, const Provider& provider, std::string_view description);
void provider_not_used(detail::JobState& job, const Provider& provider, std::string_view reason,
                       std::string_view served_by);

}  // namespace proof
}  // namespace fovea
