#include "cli/bench_report.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <fovea/introspect.h>

namespace fovea::cli {
namespace {

using nlohmann::ordered_json;

ordered_json json_of(const Spread& s) {
  return {{"median", s.median},
          {"lower_quartile", s.lower_quartile},
          {"upper_quartile", s.upper_quartile},
          {"least", s.least},
          {"most", s.most}};
}

}  // namespace

void print_machine(const Machine& machine) {
  fmt::print("{}, {} thread{}, fovea {} ({})\n", machine.device, machine.threads,
             machine.threads == 1 ? "" : "s", version(), FOVEA_COMMIT);
  for (const MachinePeak& peak : machine.peaks) {
    fmt::print("  peak {:<10}    {:8.1f} GFLOP/s\n", peak.instruction_set, peak.flops * 1e-9);
  }
  fmt::print("  memory reads       {:8.1f} GB/s\n", machine.read_bytes * 1e-9);
}

void print_row(const BenchRow& row) {
  const double rate = row.flops / row.seconds.median;
  fmt::print("\n{} {}{}{}\n", row.case_name, row.direction, row.device.empty() ? "" : " on ",
             row.device);
  fmt::print("  result {}\n", row.check);
  const std::string share =
      row.peak_flops > 0 ? fmt::format(", {:.1f} % of the peak ({:.1f} GFLOP/s between the rounds)",
                                       100 * rate / row.peak_flops, row.peak_flops * 1e-9)
                         : std::string();
  fmt::print(
      "  {:<24} {:10.3f} ms (quartiles {:.3f} to {:.3f}), {:.4f} TFLOP/s{}, workspace {:.2f} MiB\n",
      row.kernel, row.seconds.median * 1e3, row.seconds.lower_quartile * 1e3,
      row.seconds.upper_quartile * 1e3, rate * 1e-12, share,
      static_cast<double>(row.workspace_bytes) / 1048576);
  if (row.machine_read_bytes > 0) {
    const double read = row.read_bytes / row.seconds.median;
    fmt::print(
        "  {:<24} reads at {:.1f} GB/s, {:.1f} % of the machine ({:.1f} GB/s between the "
        "rounds)\n",
        "", read * 1e-9, 100 * read / row.machine_read_bytes, row.machine_read_bytes * 1e-9);
  }
  if (row.peer.empty()) return;
  fmt::print("  {:<24} {:10.3f} ms (quartiles {:.3f} to {:.3f}), {:.4f} TFLOP/s\n", row.peer,
             row.peer_seconds.median * 1e3, row.peer_seconds.lower_quartile * 1e3,
             row.peer_seconds.upper_quartile * 1e3, row.flops / row.peer_seconds.median * 1e-12);
  fmt::print("  {} is {:.2f} times as fast (quartiles {:.2f} to {:.2f}, {} rounds)\n", row.kernel,
             row.ratio.median, row.ratio.lower_quartile, row.ratio.upper_quartile, row.rounds);
}

std::string bench_json(const Machine& machine, const std::vector<BenchRow>& rows) {
  ordered_json report;
  report["version"] = version();
  report["commit"] = FOVEA_COMMIT;
  report["device"] = machine.device;
  report["threads"] = machine.threads;
  for (const MachinePeak& peak : machine.peaks) {
    report["peak_flops"][peak.instruction_set] = peak.flops;
  }
  report["read_bytes_per_second"] = machine.read_bytes;
  report["rows"] = ordered_json::array();
  for (const BenchRow& row : rows) {
    const double rate = row.flops / row.seconds.median;
    ordered_json entry = {{"case", row.case_name},
                          {"direction", row.direction},
                          {"kernel", row.kernel},
                          {"check", row.check},
                          {"flops", row.flops},
                          {"rounds", row.rounds},
                          {"workspace_bytes", row.workspace_bytes},
                          {"seconds", json_of(row.seconds)},
                          {"flops_per_second", rate}};
    if (!row.device.empty()) entry["device"] = row.device;
    if (row.peak_flops > 0) {
      entry["peak_flops_per_second"] = row.peak_flops;
      entry["share_of_peak"] = rate / row.peak_flops;
    }
    if (row.machine_read_bytes > 0) {
      const double read = row.read_bytes / row.seconds.median;
      entry["read_bytes"] = row.read_bytes;
      entry["read_bytes_per_second"] = read;
      entry["machine_read_bytes_per_second"] = row.machine_read_bytes;
      entry["share_of_reads"] = read / row.machine_read_bytes;
    }
    if (!row.peer.empty()) {
      entry["peer"] = row.peer;
      entry["peer_seconds"] = json_of(row.peer_seconds);
      entry["ratio"] = json_of(row.ratio);
    }
    report["rows"].push_back(std::move(entry));
  }
  return report.dump(2) + "\n";
}

}  // namespace fovea::cli
