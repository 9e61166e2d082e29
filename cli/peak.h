// What this machine can do at most, measured: f32 multiply-adds and memory reads.
#pragma once

#include <string>
#include <vector>

namespace fovea::cli {

/// Instruction sets of this machine that the peak is measured with, best first: "avx512", "avx2",
/// "baseline".
std::vector<std::string> peak_instruction_sets();

/// f32 operations a second (a multiply-add is two) of independent multiply-adds in registers, on
/// `threads` threads at once, over about `seconds`.
double measure_f32_peak(const std::string& instruction_set, int threads, double seconds);

/// Bytes a second read from memory that no cache holds, on `threads` threads at once.
double measure_read_bandwidth(int threads, double seconds);

}  // namespace fovea::cli
