// What `fovea bench` has measured, as text and as JSON.
#pragma once

#include <string>
#include <vector>

#include "cli/bench_measure.h"

namespace fovea::cli {

struct MachinePeak {
  std::string instruction_set;
  double flops = 0;
};

struct Machine {
  std::string device;
  int threads = 1;
  std::vector<MachinePeak> peaks;  ///< best first
  double read_bytes = 0;           ///< a second
};

struct BenchRow {
  std::string case_name, direction, kernel, peer, check;
  std::string device;  ///< of the kernel, where that is not the machine's CPU
  double flops = 0;
  std::size_t workspace_bytes = 0;
  Spread seconds, peer_seconds;
  Spread ratio;           ///< peer's time over ours, round by round
  double peak_flops = 0;  ///< median of the measurements between the rounds; 0: of a device,
                          ///< whose peak is not measured
  double read_bytes = 0;  ///< that have to be read at least
  double machine_read_bytes = 0;  ///< a second, like peak_flops; 0 unless reads take longest
  int rounds = 0;
};

void print_machine(const Machine& machine);
void print_row(const BenchRow& row);
std::string bench_json(const Machine& machine, const std::vector<BenchRow>& rows);

}  // namespace fovea::cli
