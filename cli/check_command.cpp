// fovea check: every kernel on every case, judged by the f64 oracle.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <unistd.h>

#include "cases/each_in_threads.h"
#include "cases/random_case.h"
#include "cases/run_case.h"
#include "cases/table.h"
#include "cli/check_report.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/kernel_choice.h"
#include "cli/validators.h"

namespace fovea::cli {
namespace {

struct Settings {
  std::vector<std::string> names, patterns;
  std::string filter;
  std::int64_t random = 0, min_executed = 1;
  std::uint64_t seed = 0;
  bool has_seed = false, whole = false, list = false, json = false, verbose = false;
  bool emulate = false;
  std::optional<std::uint64_t> schedule;
  std::string dtype;
  std::vector<int> threads{0};
  int draws = 0;
  int at_once = 0;
};

struct Entry {
  std::string name, hazard;
  cases::Case spec;
};

/// Cases that go to the same kernels.
struct Job {
  std::vector<Entry> entries;
  std::vector<std::string> kernels;
};

Result<std::vector<Entry>> named_entries(const Settings& settings) {
  std::vector<Entry> entries;
  for (const std::string& name : settings.names) {
    Result<cases::Case> spec = cases::parse_case(name);
    if (!spec) return spec.status();
    entries.push_back({cases::name_of(*spec), "", *spec});
  }
  if (entries.empty() && settings.random == 0) {
    for (const cases::TableEntry& row : cases::table()) {
      entries.push_back({row.name, row.hazard, row.spec});
    }
  }
  return entries;
}

/// With --dtype: the entries in that dtype, without those that there is no such case of.
void recast(const std::string& dtype, std::vector<Entry>& entries) {
  for (const DType wanted : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    if (dtype != name_of(wanted)) continue;
    std::vector<Entry> made;
    for (const Entry& entry : entries) {
      const std::optional<cases::Case> spec = cases::with_dtype(entry.spec, wanted);
      if (spec) made.push_back({cases::name_of(*spec), entry.hazard, *spec});
    }
    entries = std::move(made);
  }
}

Status apply_filter(const std::string& filter, std::vector<Entry>& entries) {
  if (filter.empty()) return {};
  try {
    const std::regex expression(filter);
    std::erase_if(entries, [&](const Entry& entry) {
      return !std::regex_search(entry.name, expression) &&
             !std::regex_search(entry.hazard, expression);
    });
  } catch (const std::regex_error& error) {
    return {StatusCode::invalid,
            fmt::format("--filter '{}' is no regular expression: {}", filter, error.what())};
  }
  return {};
}

/// Random cases, the same ones for kernels that serve the same.
std::vector<Job> random_jobs(const Settings& settings, const std::vector<std::string>& kernels) {
  std::map<std::string, std::vector<std::string>> by_scope;
  for (const std::string& kernel : kernels) {
    const cases::Scope scope = settings.whole ? cases::whole_scope() : cases::scope_of(kernel);
    by_scope[scope.to_string()].push_back(kernel);
  }
  std::vector<Job> jobs;
  for (const auto& [bits, group] : by_scope) {
    Job job;
    job.kernels = group;
    for (std::int64_t n = 0; n < settings.random; ++n) {
      const cases::Case spec =
          cases::random_case(settings.seed + static_cast<std::uint64_t>(n), cases::Scope(bits));
      job.entries.push_back({cases::name_of(spec), "random", spec});
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

class ProgressLine {
 public:
  explicit ProgressLine(std::size_t total) : total_(total), shown_(::isatty(STDERR_FILENO) == 1) {}
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void next(const std::string& what, std::int64_t failed) {
    ++done_;
    if (shown_) {
      fmt::print(stderr, "\r\033[K[{}/{}] {} failed  {:.90}", done_, total_, failed, what);
    }
  }
  void clear() const {
    if (shown_) fmt::print(stderr, "\r\033[K");
  }

 private:
  std::size_t total_, done_ = 0;
  bool shown_;
};

void print_result(const std::string& kernel, const std::string& name,
                  const cases::CaseResult& result) {
  constexpr const char* kWords[] = {"passed", "FAILED", "skipped"};
  fmt::print("{:<8} {} {}{}{}\n", kWords[static_cast<int>(result.outcome)], kernel, name,
             result.reason.empty() ? "" : ": ", result.reason);
  for (const cases::Comparison& c : result.comparisons) {
    fmt::print("         {:<12} error {:.3g}, baseline {:.3g}, limit {:.3g}\n", c.tensor, c.error,
               c.baseline_error, c.limit);
  }
  if (result.draws > 1) fmt::print("         over {} draws of the inputs\n", result.draws);
  if (result.sampled) fmt::print("         on some of the rows\n");
}

/// A case with the kernels it goes to.
struct Item {
  const Entry* entry;
  const std::vector<std::string>* kernels;
};

/// Takes the results of items as they come, and shows and counts them in the order of the items.
class ResultsInOrder {
 public:
  ResultsInOrder(const std::vector<Item>& items, bool verbose,
                 std::optional<std::uint64_t> shown_seed, CheckReport& report)
      : items_(items),
        verbose_(verbose),
        shown_seed_(shown_seed),
        report_(report),
        progress_(items.size()) {}

  void add(std::size_t item, std::vector<cases::CaseResult> results) {
    const std::lock_guard lock(mutex_);
    waiting_.emplace(item, std::move(results));
    for (auto it = waiting_.find(next_); it != waiting_.end(); it = waiting_.find(++next_)) {
      show(items_[next_], it->second);
      waiting_.erase(it);
    }
  }

 private:
  void show(const Item& item, const std::vector<cases::CaseResult>& results) {
    const std::string& name = item.entry->name;
    for (std::size_t n = 0; n < results.size(); ++n) {
      report_.add((*item.kernels)[n], name, shown_seed_, results[n]);
      if (!verbose_) continue;
      progress_.clear();
      print_result((*item.kernels)[n], name, results[n]);
    }
    progress_.next(name, report_.failed());
  }

  const std::vector<Item>& items_;
  const bool verbose_;
  const std::optional<std::uint64_t> shown_seed_;
  CheckReport& report_;
  std::mutex mutex_;
  ProgressLine progress_;
  std::map<std::size_t, std::vector<cases::CaseResult>> waiting_;
  std::size_t next_ = 0;
};

/// How many cases are run at once: an emulated device is one for all.
int at_once(const Settings& settings) {
  if (settings.emulate) return 1;
  return settings.at_once > 0 ? settings.at_once : cases::default_threads();
}

void run_jobs(const Settings& settings, const std::vector<Job>& jobs, CheckReport& report) {
  std::vector<Item> items;
  for (const Job& job : jobs) {
    for (const Entry& entry : job.entries) items.push_back({&entry, &job.kernels});
  }
  // With --random the seed chooses the cases, and inputs follow from the names.
  const bool own_seed = settings.random > 0 || !settings.has_seed;
  ResultsInOrder all(items, settings.verbose,
                     own_seed ? std::nullopt : std::optional(settings.seed), report);
  const auto run = [&](std::size_t n) {
    const Entry& entry = *items[n].entry;
    cases::PreparedCase prepared(entry.spec,
                                 own_seed ? cases::default_seed(entry.spec) : settings.seed);
    std::vector<cases::CaseResult> results;
    for (const std::string& kernel : *items[n].kernels) {
      results.push_back(cases::run_case(prepared, kernel, settings.threads, settings.draws));
    }
    all.add(n, std::move(results));
  };
  cases::each_in_threads(items.size(), run, at_once(settings));
}

/// Lets the library emulate a CUDA device, which it decides when it is first asked for one.
Status start_emulation(const Settings& settings) {
  ::setenv("FOVEA_CUDA_EMULATE", "1", 1);
  if (settings.schedule) {
    ::setenv("FOVEA_CUDA_SEED", std::to_string(*settings.schedule).c_str(), 1);
  }
  const std::vector<DeviceInfo> all = devices();
  const bool there =
      std::any_of(all.begin(), all.end(), [](const DeviceInfo& info) { return info.emulated; });
  if (there) return {};
  return {StatusCode::unsupported,
          "this build emulates no CUDA device (configure it with FOVEA_EMULATE_CUDA=ON)"};
}

/// What a reproducer needs besides kernel, case and seed.
std::string options_of(const Settings& settings) {
  std::string options = settings.emulate ? " --emulate" : "";
  if (settings.schedule) options += fmt::format(" --seed-schedule {}", *settings.schedule);
  if (settings.draws > 0) options += fmt::format(" --draws {}", settings.draws);
  return options;
}

int run_check(const Settings& settings) {
  if (settings.emulate) {
    if (Status s = start_emulation(settings); !s.ok()) {
      return complain("check", s.message(), kFailure);
    }
  }
  Result<std::vector<Entry>> entries = named_entries(settings);
  if (!entries) return complain("check", entries.status().message(), kUsage);
  recast(settings.dtype, *entries);
  if (Status s = apply_filter(settings.filter, *entries); !s.ok()) {
    return complain("check", s.message(), kUsage);
  }
  const Result<std::vector<KernelInfo>> chosen = kernels_matching(settings.patterns);
  if (!chosen) return complain("check", chosen.status().message(), kUsage);
  CheckReport report(options_of(settings));
  std::vector<std::string> kernels;
  for (const KernelInfo& kernel : *chosen) {
    if (!kernel.available) {
      report.add_unavailable(kernel.id, kernel.reason);
    } else if (settings.random == 0 || !kernel.explicit_only || !settings.patterns.empty()) {
      kernels.push_back(kernel.id);
    }
  }
  std::vector<Job> jobs;
  if (!entries->empty()) jobs.push_back({std::move(*entries), kernels});
  if (settings.random > 0) {
    for (Job& job : random_jobs(settings, kernels)) {
      if (Status s = apply_filter(settings.filter, job.entries); !s.ok()) {
        return complain("check", s.message(), kUsage);
      }
      jobs.push_back(std::move(job));
    }
  }
  if (settings.list) {
    for (const Job& job : jobs) {
      for (const Entry& entry : job.entries) fmt::print("{}  {}\n", entry.name, entry.hazard);
    }
    return kSuccess;
  }
  run_jobs(settings, jobs, report);
  if (settings.json) {
    fmt::print("{}\n", report.as_json());
  } else {
    report.print();
  }
  if (report.executed() < settings.min_executed) {
    return complain("check",
                    fmt::format("{} cases were executed; at least {} are wanted", report.executed(),
                                settings.min_executed),
                    kFailure);
  }
  return report.failed() == 0 ? kSuccess : kFailure;
}

}  // namespace

void add_check_command(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<Settings>();
  Settings& s = *settings;
  CLI::App* command = app.add_subcommand(
      "check",
      "Run kernels on cases and judge them by the f64 oracle: error at most twice that of an "
      "unfused evaluation in the same dtype. Without cases: the whole table. Exits with 1 when a "
      "case fails or nothing was executed.");
  command->add_option("cases", s.names,
                      "Case names, e.g. b2_hq8_hkv2_q257_k513_d64_f32_causal (see --list)");
  command->add_option("--kernel", s.patterns, "Kernels, as shell patterns: 'cpu.avx2.*'")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--filter", s.filter,
                      "A regular expression that the name or its hazard contains");
  command->add_option("--random", s.random, "Run this many random cases instead of the table")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{100'000'000}));
  CLI::Option* seed = command
                          ->add_option("--seed", s.seed,
                                       "With --random: the first case; else the seed of the inputs")
                          ->check(seed_value());
  command->add_flag("--whole", s.whole,
                    "Random cases over the whole contract, not only over what each kernel serves");
  command
      ->add_option("--threads", s.threads,
                   "Numbers of threads that must give the same bits, separated by commas; "
                   "0 = default")
      ->delimiter(',')
      ->check(CLI::Range(0, 1024));
  command
      ->add_option("--draws", s.draws,
                   "Sets of inputs that a case is judged over; by default as its size allows, on "
                   "an emulated device fewer")
      ->check(CLI::Range(1, 10000));
  command->add_option("--dtype", s.dtype, "Run the cases with q, k and v in this dtype")
      ->check(CLI::IsMember({"f32", "f16", "bf16", "f64"}));
  CLI::Option* emulate = command->add_flag(
      "--emulate", s.emulate, "CUDA kernels run on an emulated device, which finds their races");
  command
      ->add_option("--at-once", s.at_once,
                   "Cases that are run at the same time; by default FOVEA_NUM_THREADS, else the "
                   "usable cores. An emulated device takes one")
      ->check(CLI::Range(1, 1024))
      ->excludes(emulate);
  command
      ->add_option("--seed-schedule", s.schedule,
                   "In which order the emulated device lets threads run (default 1)")
      ->check(seed_value())
      ->needs(emulate);
  command->add_option("--min-executed", s.min_executed, "Fail when fewer cases were executed")
      ->capture_default_str();
  command->add_flag("--list", s.list, "List the cases and their hazards, and stop");
  command->add_flag("--verbose", s.verbose, "Print every result with its errors");
  command->add_flag("--json", s.json, "Print the summary as one JSON object");
  command->callback([settings, seed, &exit_code] {
    settings->has_seed = seed->count() > 0;
    exit_code = run_check(*settings);
  });
}

}  // namespace fovea::cli
