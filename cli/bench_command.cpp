// fovea bench: how fast kernels are on cases, as a share of what the machine can do.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <fovea/introspect.h>

#include "cases/work.h"
#include "cli/bench_measure.h"
#include "cli/bench_report.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/kernel_choice.h"
#include "cli/peak.h"
#include "cli/validators.h"
#include "io/atomic_file.h"

namespace fovea::cli {
namespace {

constexpr double kPeakSeconds = 0.05;

struct Settings {
  std::vector<std::string> names;
  std::string kernel, peer, direction = "both", json;
  int threads = 0, rounds = 9;
  double min_time = 0.2;
  bool no_check = false, autotune = false;
  std::string device = "cpu";
};

const std::vector<std::string>& default_names() {
  static const std::vector<std::string> names{
      "b1_hq8_hkv8_q2048_k2048_d64_f32", "b1_hq8_hkv8_q2048_k2048_d64_f32_causal",
      "b1_hq8_hkv8_q2048_k2048_d128_f32", "b1_hq8_hkv8_q2048_k2048_d128_f32_causal"};
  return names;
}

Machine measure_machine(int threads) {
  Machine machine;
  machine.threads = threads;
  for (const DeviceInfo& device : devices()) {
    if (device.device.type == DeviceType::cpu) machine.device = device.name;
  }
  for (const std::string& set : peak_instruction_sets()) {
    machine.peaks.push_back({set, measure_peak(set, threads, 4 * kPeakSeconds)});
  }
  machine.read_bytes = measure_read_bandwidth(threads, 4 * kPeakSeconds);
  return machine;
}

/// Judges one kernel's result; a message where it is wrong or cannot be had.
Result<std::string> check_result(cases::PreparedCase& prepared, const std::string& kernel,
                                 int threads) {
  const cases::CaseResult result = cases::run_case(prepared, kernel, {threads});
  const std::string where = fmt::format("{} {}", kernel, cases::name_of(prepared.spec()));
  if (result.outcome == cases::Outcome::refused) {
    return Status(StatusCode::unsupported, fmt::format("{}: {}", where, result.reason));
  }
  if (result.outcome == cases::Outcome::failed) {
    return Status(StatusCode::internal, fmt::format("{} is wrong: {}", where, result.reason));
  }
  std::string text = result.sampled ? "right on sampled rows:" : "right:";
  for (const cases::Comparison& c : result.comparisons) {
    text += fmt::format(" {} {:.2g} (limit {:.2g})", c.tensor, c.error, c.limit);
  }
  return text;
}

Result<BenchRow> measure(const Settings& settings, cases::PreparedCase& prepared,
                         const std::string& kernel, const std::string& peer,
                         const Machine& machine) {
  const cases::Direction direction = cases::direction_of(kernel);
  BenchRow row;
  row.case_name = cases::name_of(prepared.spec());
  row.direction = direction == cases::Direction::forward ? "forward" : "backward";
  row.flops = cases::flops_of(prepared.spec(), direction);
  row.read_bytes = cases::read_bytes_of(prepared.spec(), direction);
  // Peaks are the CPU's: a device's kernel is measured without one.
  const bool on_cpu = cases::device_of(kernel).type == DeviceType::cpu;
  const bool reads_take_longest =
      on_cpu && row.read_bytes / machine.read_bytes > row.flops / machine.peaks.front().flops;
  row.rounds = settings.rounds;
  row.check = "not checked";
  if (!settings.no_check) {
    for (const std::string& id : {peer, kernel}) {
      if (id.empty()) continue;
      Result<std::string> text = check_result(prepared, id, settings.threads);
      if (!text) return text.status();
      row.check = *text;
    }
  }
  Result<Contestant> ours = Contestant::make(prepared, direction, kernel, settings.threads);
  if (!ours) return ours.status();
  std::optional<Contestant> theirs;
  if (!peer.empty()) {
    Result<Contestant> made = Contestant::make(prepared, direction, peer, settings.threads);
    if (!made) return made.status();
    theirs = *made;
  }
  row.kernel = ours->kernel();
  row.peer = peer;
  row.workspace_bytes = ours->workspace_bytes();
  for (const DeviceInfo& info : devices()) {
    if (!on_cpu && info.device == ours->device()) row.device = info.name;
  }

  const std::string peak_set = on_cpu ? peak_set_of(row.kernel) : "";
  std::vector<double> times, peer_times, ratios, peaks, reads;
  for (int round = -1; round < settings.rounds; ++round) {  // round -1 warms up
    const double peak = on_cpu ? measure_peak(peak_set, machine.threads, kPeakSeconds) : 0;
    const double read =
        reads_take_longest ? measure_read_bandwidth(machine.threads, kPeakSeconds) : 0;
    const Result<double> time = ours->time(settings.min_time);
    if (!time) return time.status();
    Result<double> peer_time = 0.0;
    if (theirs) {
      peer_time = theirs->time(settings.min_time);
      if (!peer_time) return peer_time.status();
    }
    if (round < 0) continue;
    peaks.push_back(peak);
    reads.push_back(read);
    times.push_back(*time);
    if (!theirs) continue;
    peer_times.push_back(*peer_time);
    ratios.push_back(*peer_time / *time);
  }
  row.seconds = spread_of(times);
  row.peer_seconds = spread_of(peer_times);
  row.ratio = spread_of(ratios);
  row.peak_flops = spread_of(peaks).median;
  row.machine_read_bytes = spread_of(reads).median;
  return row;
}

/// The kernel to measure: as named, or the one that the library chooses for the case.
Result<std::string> kernel_for(const Settings& settings, cases::PreparedCase& prepared,
                               const std::string& direction) {
  if (!settings.kernel.empty()) {
    Result<KernelInfo> kernel = kernel_named(settings.kernel, direction);
    if (!kernel) return kernel.status();
    return kernel->id;
  }
  const Device device{settings.device == "cuda" ? DeviceType::cuda : DeviceType::cpu, 0};
  const Result<Report> chosen = Contestant::choose(
      prepared, direction == "forward" ? cases::Direction::forward : cases::Direction::backward,
      device, settings.threads, settings.autotune);
  if (!chosen) return chosen.status();
  const Tuning& tuned = chosen->tuned;
  if (settings.autotune) {
    fmt::print("{} {}: {} by {}", cases::name_of(prepared.spec()), direction, chosen->kernel,
               tuned.measured ? "measurement"
               : tuned.known  ? "an earlier measurement"
                              : "priority");
    for (const TunedKernel& kernel : tuned.kernels) {
      fmt::print("; {} {:.4g} ms", kernel.kernel, kernel.ms);
    }
    fmt::print("{}{}\n", tuned.note.empty() ? "" : "; ", tuned.note);
  }
  return chosen->kernel;
}

std::vector<std::string> directions_of(const Settings& settings) {
  if (settings.direction != "both") return {settings.direction};
  for (const char* direction : {"forward", "backward"}) {
    // A kernel named in full has one direction.
    if (settings.kernel.ends_with(std::string(".") + direction)) return {direction};
  }
  return {"forward", "backward"};
}

Status store_json(const std::string& path, const std::string& text) {
  Result<io::AtomicFile> file = io::AtomicFile::create(path);
  if (!file) return file.status();
  if (Status status = file->write(text.data(), text.size()); !status.ok()) return status;
  return file->commit();
}

int run_bench(const Settings& settings) {
  std::vector<cases::Case> specs;
  for (const std::string& name : settings.names.empty() ? default_names() : settings.names) {
    Result<cases::Case> spec = cases::parse_case(name);
    if (!spec) return complain("bench", spec.status().message(), kUsage);
    specs.push_back(*spec);
  }
  const std::vector<std::string> directions = directions_of(settings);
  for (const std::string& direction : directions) {
    for (const std::string& name : {settings.kernel, settings.peer}) {
      if (name.empty()) continue;
      const Result<KernelInfo> kernel = kernel_named(name, direction);
      if (!kernel) return complain("bench", kernel.status().message(), kUsage);
    }
  }
  if (!settings.json.empty()) {
    if (Status s = io::check_writable(settings.json); !s.ok()) {
      return complain("bench", s.message(), kFailure);
    }
  }
  int threads = settings.threads;
  for (const DeviceInfo& device : devices()) {
    if (threads == 0 && device.device.type == DeviceType::cpu) threads = device.threads;
  }
  const Machine machine = measure_machine(std::max(threads, 1));
  print_machine(machine);
  std::vector<BenchRow> rows;
  int exit_code = kSuccess;
  for (const cases::Case& spec : specs) {
    cases::PreparedCase prepared(spec, cases::default_seed(spec));
    for (const std::string& direction : directions) {
      const Result<std::string> kernel = kernel_for(settings, prepared, direction);
      if (!kernel) {
        exit_code = complain("bench", kernel.status().message(), kFailure);
        continue;
      }
      const std::string peer =
          settings.peer.empty() ? "" : kernel_named(settings.peer, direction)->id;
      Result<BenchRow> row = measure(settings, prepared, *kernel, peer, machine);
      if (!row) {
        exit_code = complain("bench", row.status().message(), kFailure);
        continue;
      }
      print_row(*row);
      rows.push_back(std::move(*row));
    }
  }
  if (!settings.json.empty()) {
    if (Status s = store_json(settings.json, bench_json(machine, rows)); !s.ok()) {
      return complain("bench", s.message(), kFailure);
    }
  }
  return exit_code;
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<Settings>();
  Settings& s = *settings;
  CLI::App* command = app.add_subcommand(
      "bench",
      "Measure kernels on cases: the machine's peak first, then the result's correctness, then "
      "time in rounds that alternate with a peer and with the peak (and with memory reads, where "
      "those take longest). Without cases: B1 H8 S2048, D64 and "
      "D128, full and causal.");
  command->add_option("cases", s.names, "Case names, as in fovea check");
  command->add_option("--kernel", s.kernel,
                      "The kernel, with or without its direction; default: the library's choice");
  command->add_option("--peer", s.peer, "A kernel to compare with: cpu.unfused");
  command->add_option("--direction", s.direction, "forward, backward or both")
      ->check(CLI::IsMember({"forward", "backward", "both"}))
      ->capture_default_str();
  command->add_option("--threads", s.threads, "Threads; 0 = all that may be used")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--rounds", s.rounds, "Rounds, at least 7")
      ->check(CLI::Range(7, 10'000))
      ->capture_default_str();
  command->add_option("--min-time", s.min_time, "Seconds of each kernel in each round")
      ->check(number("NUMBER in [0.001, 3600]", [](double x) { return x >= 0.001 && x <= 3600; }))
      ->capture_default_str();
  command
      ->add_flag("--autotune", s.autotune,
                 "Let the library measure its kernels for its choice, and show what it measured")
      ->excludes("--kernel");
  command->add_option("--device", s.device, "Where the library chooses a kernel: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->excludes("--kernel")
      ->capture_default_str();
  command->add_flag("--no-check", s.no_check, "Do not check results first");
  command->add_option("--json", s.json, "Write the measurements to this file");
  command->callback([settings, &exit_code] { exit_code = run_bench(*settings); });
}

}  // namespace fovea::cli
