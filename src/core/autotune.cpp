#include "core/autotune.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <optional>

#include <sys/stat.h>

#include <fovea/introspect.h>

#include "contract/format.h"
#include "core/devices.h"
#include "core/kernel_table.h"
#include "core/self_check.h"
#include "core/status_macros.h"
#include "core/tuning_scratch.h"
#include "core/tuning_store.h"
#include "core/views.h"

namespace fovea {
namespace {

/// How much faster than the choice of priority another kernel must be.
constexpr double kMargin = 0.02;
constexpr int kRounds = 9, kFewestRounds = 3;
/// Rounds end when they have taken this long.
constexpr double kRoundsSeconds = 1;
/// One round of a kernel: many runs, where they are short, so that clock and waiting do not count.
constexpr double kHostSeconds = 1e-3, kDeviceSeconds = 5e-3;
constexpr double kMostRuns = 200;
/// Kernels that take this many times as long as the best are out after one run.
constexpr double kHopeless = 3;

/// Lengths up to here are told apart, longer ones by their power of two.
constexpr std::int64_t kExact = 128;

std::string size_class(std::int64_t n) {
  if (n == kUnbounded) return "all";
  if (n <= kExact) return formatted("{}", n);
  return formatted("2^{}", std::bit_width(static_cast<std::uint64_t>(n)) - 1);
}

/// Dimensions by falling stride, those of size 1 left out, and what makes a layout slower to read:
/// "0213" for bshd, "x" where the last stride is not 1, "m" where rows are not at multiples of 16
/// bytes, "0" strides as "e".
std::string layout_class(const TensorView& view) {
  std::vector<std::size_t> order;
  for (int d = 0; d < view.rank; ++d)
    if (view.shape[static_cast<std::size_t>(d)] != 1) order.push_back(static_cast<std::size_t>(d));
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::abs(view.strides[a]) > std::abs(view.strides[b]);
  });
  std::string text;
  bool odd = reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0, expanded = false, packed = true;
  std::int64_t inner = 1;
  for (std::size_t n = order.size(); n-- > 0;) {
    const std::size_t d = order[n];
    packed = packed && view.strides[d] == inner;
    inner *= view.shape[d];
    expanded = expanded || view.strides[d] == 0;
    if (static_cast<int>(d) + 1 < view.rank)
      odd = odd || view.strides[d] * size_of(view.dtype) % 16 != 0;
  }
  for (const std::size_t d : order) text += static_cast<char>('0' + d);
  const auto last = static_cast<std::size_t>(std::max(view.rank - 1, 0));
  if (view.rank > 0 && view.shape[last] != 1 && view.strides[last] != 1) text += 'x';
  if (odd) text += 'm';
  if (expanded) text += 'e';
  if (!packed) text += 's';
  return text;
}

/// This very build: what was measured with another need not hold.
const std::string& build_name() {
  static const std::string name = [] {
    struct stat file {};
    const std::string path = library_path();
    if (stat(path.c_str(), &file) != 0) return std::string(version());
    return formatted("{}-{:x}.{:x}", version(), file.st_mtim.tv_sec, file.st_size);
  }();
  return name;
}

struct Candidate {
  const Kernel* kernel;
  std::vector<double> times;  ///< ms of one run
  double estimate = 0;        ///< seconds of one run
  bool out = false;
};

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Runs kernels on the scratch problem, on a stream of the library's own.
class Trial {
 public:
  static Result<Trial> make(const Problem& problem, const ThreadPool& pool,
                            const std::vector<Candidate>& candidates) {
    const DeviceQueue* queue = queue_of(problem.device);
    std::size_t workspace = 0;
    for (const Candidate& c : candidates)
      workspace = std::max(workspace, c.kernel->workspace_bytes(problem, pool.threads));
    auto scratch = TuningScratch::make(problem, workspace);
    if (!scratch.ok()) return scratch.status();
    Trial trial;
    trial.queue_ = queue;
    trial.launch_.pool = &pool;
    trial.launch_.workspace = (*scratch)->workspace();
    if (queue != nullptr) {
      const Result<void*> stream = queue->own_stream(problem.device.index);
      if (!stream.ok()) return stream.status();
      trial.launch_.stream = *stream;
    }
    trial.scratch_ = std::move(*scratch);
    return trial;
  }

  /// Seconds of one of `runs` runs.
  Result<double> time(const Kernel& kernel, int runs) const {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point begin = Clock::now();
    for (int n = 0; n < runs; ++n) FOVEA_RETURN_IF_ERROR(kernel.run(scratch_->problem(), launch_));
    if (queue_ != nullptr)
      FOVEA_RETURN_IF_ERROR(queue_->synchronize(scratch_->problem().device.index, launch_.stream));
    return std::chrono::duration<double>(Clock::now() - begin).count() / runs;
  }
  [[nodiscard]] int runs_of(const Candidate& c) const {
    const double wanted = queue_ == nullptr ? kHostSeconds : kDeviceSeconds;
    return static_cast<int>(std::clamp(wanted / std::max(c.estimate, 1e-9), 1.0, kMostRuns));
  }

 private:
  Trial() = default;

  std::shared_ptr<TuningScratch> scratch_;
  const DeviceQueue* queue_ = nullptr;
  Launch launch_;
};

Status measure(const Problem& problem, const ThreadPool& pool, std::vector<Candidate>& candidates) {
  const Result<Trial> trial = Trial::make(problem, pool, candidates);
  if (!trial.ok()) return trial.status();
  const auto failed = [](const Kernel& kernel, const Status& status) {
    return Status(status.code(),
                  formatted("the trial of {} failed: {}", kernel.id, status.message()));
  };
  // Warm up: a first run may load code; the second says how long one takes.
  double best = 0;
  for (Candidate& c : candidates)
    for (int n = 0; n < 2; ++n) {
      const Result<double> seconds = trial->time(*c.kernel, 1);
      if (!seconds.ok()) return failed(*c.kernel, seconds.status());
      c.estimate = *seconds;
      if (best > 0 && c.estimate > 10 * kHopeless * best) break;
      if (n == 1) best = best == 0 ? c.estimate : std::min(best, c.estimate);
    }
  for (Candidate& c : candidates) {
    c.out = c.estimate > kHopeless * best;
    if (c.out) c.times = {c.estimate * 1e3};
  }
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  for (int round = 0; round < kRounds; ++round) {
    if (round >= kFewestRounds &&
        std::chrono::duration<double>(Clock::now() - begin).count() > kRoundsSeconds)
      break;
    for (Candidate& c : candidates) {
      if (c.out) continue;
      const Result<double> seconds = trial->time(*c.kernel, trial->runs_of(c));
      if (!seconds.ok()) return failed(*c.kernel, seconds.status());
      c.times.push_back(*seconds * 1e3);
    }
  }
  return {};
}

/// What priority has chosen, and all behind it that serves too.
std::vector<Candidate> candidates_of(const Problem& problem, const EffectiveChoice& choice,
                                     bool self_check, const Selection& selection) {
  std::vector<Candidate> list;
  bool behind = false;
  for (const Kernel* kernel : kernel_table()) {
    if (kernel == selection.kernel) {
      list.push_back({kernel, {}});
      behind = true;
      continue;
    }
    if (!behind || kernel->direction != problem.direction || kernel->explicit_only) continue;
    Refusal refusal = consider(*kernel, problem, choice);
    if (refusal.serves() && self_check) refusal = check_instantiation(*kernel, problem);
    if (refusal.serves()) list.push_back({kernel, {}});
  }
  return list;
}

/// Makes the choice the selection's. False where it names a kernel that is no candidate.
bool adopt(const TunedChoice& choice, const std::vector<Candidate>& candidates,
           Selection& selection) {
  const auto named = [](const TunedChoice& from, const Kernel& kernel) {
    return std::find_if(from.kernels.begin(), from.kernels.end(),
                        [&](const TunedKernel& k) { return k.kernel == kernel.id; });
  };
  const auto winner = std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& c) {
    return choice.kernel == c.kernel->id;
  });
  if (winner == candidates.end()) return false;
  const auto best = named(choice, *winner->kernel);
  selection.by_priority = selection.passed_over.size();
  for (auto c = candidates.begin(); c != winner; ++c) {
    Refusal slower = Refusal::because(RefusalCode::slower);
    const auto own = named(choice, *c->kernel);
    slower.value = own == choice.kernels.end() ? 0 : own->ms;
    slower.limit = best == choice.kernels.end() ? 0 : best->ms;
    selection.passed_over.push_back({c->kernel, slower});
  }
  selection.kernel = winner->kernel;
  return true;
}

TunedChoice decide(const std::string& call, const std::vector<Candidate>& candidates) {
  TunedChoice choice{call, candidates.front().kernel->id, {}};
  double best = 0;  // what the next must beat
  for (const Candidate& c : candidates) {
    const double ms = median_of(c.times);
    choice.kernels.push_back({c.kernel->id, ms});
    if (&c == &candidates.front()) {
      best = ms * (1 - kMargin);
    } else if (ms < best) {
      best = ms;
      choice.kernel = c.kernel->id;
    }
  }
  return choice;
}

bool is_emulated(const Device& device) {
  const Backend* backend = find_backend(device.type);
  for (const DeviceInfo& info : backend->devices())
    if (info.device == device) return info.emulated;
  return false;
}

/// One measurement at a time: two would disturb each other.
std::mutex& measuring() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

}  // namespace

std::string tuning_class(const Problem& p, const ThreadPool& pool,
                         const std::vector<const Kernel*>& kernels) {
  const DeviceQueue* queue = queue_of(p.device);
  std::string text = formatted("fovea {}; {}", build_name(), device_name(p.device));
  if (queue == nullptr)
    text += formatted(", {} threads", pool.threads);
  else if (queue->driver != nullptr)
    text += ", " + queue->driver();
  text += formatted("; {} {}", name_of(p.direction), name_of(p.compute));
  // Dtypes and layouts of all that is there, in a fixed order.
  std::string views;
  visit_problem(p, [&](const TensorView& view, const char*, Role) {
    if (view.present())
      views += formatted(" {}:{}", name_of(view.dtype), layout_class(view));
    else
      views += " -";
  });
  // Absent ones at the end say nothing.
  views.erase(views.find_last_not_of(" -") + 1);
  text += formatted("; d{} dv{} group {} features {:#x}{}", p.head_dim, p.v_head_dim,
                    p.kv_heads > 0 ? p.group() : 0, p.features.bits,
                    p.deterministic ? " deterministic" : "");
  if (p.features.has(Feature::band))
    text += formatted("; band {} {} {}", static_cast<int>(p.params.band->anchor),
                      size_class(p.params.band->left), size_class(p.params.band->right));
  text += formatted("; heads {} q {} k {};{};", size_class(p.batch * p.q_heads),
                    size_class(p.q_len), size_class(p.kv_len), views);
  for (const Kernel* kernel : kernels) {
    text += formatted(" {}", kernel->id);
    if (kernel->version != nullptr) text += formatted(" ({})", kernel->version());
  }
  return text;
}

Tuning tune(const Problem& problem, const EffectiveChoice& choice, bool self_check,
            const ThreadPool& pool, Selection& selection) {
  Tuning tuning;
  if (!choice.kernel.empty() || selection.kernel->explicit_only) {
    tuning.note = formatted("the kernel stands by {}", choice.source);
    return tuning;
  }
  if (is_emulated(problem.device)) {
    tuning.note = "an emulated device is not timed";
    return tuning;
  }
  std::vector<Candidate> candidates = candidates_of(problem, choice, self_check, selection);
  if (candidates.size() < 2) {
    tuning.note = "no other kernel serves";
    return tuning;
  }
  std::vector<const Kernel*> kernels;
  kernels.reserve(candidates.size());
  for (const Candidate& c : candidates) kernels.push_back(c.kernel);
  const std::string call = tuning_class(problem, pool, kernels);

  const std::lock_guard lock(measuring());
  if (const std::optional<TunedChoice> kept = find_tuning(call, tuning.note);
      kept && adopt(*kept, candidates, selection)) {
    tuning.known = true;
    tuning.kernels = kept->kernels;
    return tuning;
  }
  if (Status status = measure(problem, pool, candidates); !status.ok()) {
    tuning.note += (tuning.note.empty() ? "" : "; ") + status.message();
    return tuning;
  }
  const TunedChoice made = decide(call, candidates);
  tuning.measured = true;
  tuning.kernels = made.kernels;
  static_cast<void>(adopt(made, candidates, selection));
  keep_tuning(made, tuning.note);
  return tuning;
}

}  // namespace fovea
