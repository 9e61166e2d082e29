// What this machine can do at most, measured: multiply-adds and memory reads.
#pragma once

#include <string>
#include <vector>

namespace fovea::cli {

/// Instruction sets of this machine that the peak is measured with: those for f32, best first
/// ("avx512", "avx2", "baseline"), then those for bf16, best last ("avx512bf16", "amxbf16").
std::vector<std::string> peak_instruction_sets();

/// The set whose peak is what a kernel can reach: its own for bf16, else the best for f32.
std::string peak_set_of(const std::string& kernel);

/// Operations a second (a multiply-add is two) of independent multiply-adds in registers, on
/// `threads` threads at once, over about `seconds`.
double measure_peak(const std::string& instruction_set, int threads, double seconds);

/// Bytes a second read from memory that no cache holds, on `threads` threads at once.
double measure_read_bandwidth(int threads, double seconds);

}  // namespace fovea::cli
