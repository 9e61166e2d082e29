#include "core/proof.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <fovea/introspect.h>

#include "contract/format.h"
#include "core/outstanding.h"
#include "core/replays.h"

namespace fovea {
namespace {

ProofLevel level_from_environment() {
  const char* value = std::getenv("FOVEA_PROOF");
  const std::string_view text = value == nullptr ? "" : value;
  if (text == "proof") return ProofLevel::proof;
  if (text == "all") return ProofLevel::all;
  return ProofLevel::off;
}

std::atomic<ProofLevel>& level() {
  static std::atomic<ProofLevel> value{level_from_environment()};
  return value;
}

struct Sink {
  std::mutex mutex;
  std::function<void(std::string_view)> function;
};

Sink& sink() {
  static auto* instance = new Sink;
  return *instance;
}

void emit(const std::string& line) {
  Sink& s = sink();
  const std::lock_guard lock(s.mutex);
  if (s.function)
    s.function(line);
  else
    std::fprintf(stderr, "%s\n", line.c_str());
}

/// Settles what has finished and hands out the job's failure, once.
Status flush_of(detail::JobState& job) {
  settle_finished_runs();
  settle_replays();
  const std::lock_guard lock(job.mutex);
  return std::exchange(job.failure, Status());
}

}  // namespace

void set_proof_level(ProofLevel value) { level() = value; }
ProofLevel proof_level() { return level().load(std::memory_order_relaxed); }

void set_proof_sink(std::function<void(std::string_view line)> function) {
  Sink& s = sink();
  const std::lock_guard lock(s.mutex);
  s.function = std::move(function);
}

namespace detail {

const std::shared_ptr<JobState>& JobState::of(const Job* job) {
  static auto* process = new auto(std::make_shared<JobState>("process"));
  return job == nullptr ? *process : job->state_;
}

}  // namespace detail

Job::Job(std::string name) : state_(std::make_shared<detail::JobState>(std::move(name))) {}
Job::~Job() {
  try {
    static_cast<void>(flush());
  } catch (...) {  // the application's sink, or memory: a later look does the rest
    return;
  }
}
const std::string& Job::name() const { return state_->name; }

std::vector<std::string> Job::kernels_ran() const {
  settle_finished_runs();
  settle_replays();
  const std::lock_guard lock(state_->mutex);
  return state_->order;
}

Status Job::flush() { return flush_of(*state_); }

Status flush() { return flush_of(*detail::JobState::of(nullptr)); }

namespace proof {
namespace {

bool is_due(bool first) {
  const ProofLevel level = proof_level();
  return level == ProofLevel::all || (first && level == ProofLevel::proof);
}

void say_not_used(std::string_view id, std::string_view reason, std::string_view served_by) {
  emit(formatted("[fovea] NOT used {} — {}; {}", id, reason,
                 served_by.empty() ? std::string("nothing served instead")
                                   : formatted("served by {}", served_by)));
}

}  // namespace

void completed(detail::JobState& job, const Subject& subject) {
  bool first = false;
  if (!job.ran[subject.row].load(std::memory_order_acquire)) {
    const std::lock_guard lock(job.mutex);
    first = !job.ran[subject.row];
    if (first) job.order.emplace_back(subject.kernel->id);
    job.ran[subject.row].store(true, std::memory_order_release);
  }
  if (is_due(first))
    emit(formatted("[fovea] ran {} {} ver={} file={} device={}", subject.kernel->id,
                   subject.description, version(), library_path(), subject.device));
}

void not_used(detail::JobState& job, const Subject& subject, const std::string& reason,
              const char* served_by) {
  const bool first = !job.refused[subject.row].exchange(true, std::memory_order_relaxed);
  if (is_due(first))
    say_not_used(subject.kernel->id, reason, served_by == nullptr ? "" : served_by);
}

void provider_ran(detail::JobState& job, const Provider& provider, std::string_view description) {
  bool first = false;
  {
    const std::lock_guard lock(job.mutex);
    first = std::find(job.order.begin(), job.order.end(), provider.name) == job.order.end();
    if (first) job.order.push_back(provider.name);
  }
  if (is_due(first))
    emit(formatted("[fovea] ran {} ver={} file={} {}", provider.name, provider.version,
                   provider.file, description));
}

void provider_not_used(detail::JobState& job, const Provider& provider, std::string_view reason,
                       std::string_view served_by) {
  bool first = false;
  {
    const std::lock_guard lock(job.mutex);
    first = job.providers_refused.insert(provider.name).second;
  }
  if (is_due(first)) say_not_used(provider.name, reason, served_by);
}

}  // namespace proof
}  // namespace fovea
