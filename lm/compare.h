// Unfused against flash attention in training: time and memory of the same small model.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lm/gpt2.h"

namespace fovea::lm {

struct CompareOptions {
  std::vector<std::int64_t> contexts = {512, 2048, 8192};
  std::vector<std::string> backends = {"unfused", "flash"};
  std::int64_t layers = 2;
  std::int64_t width = 128;
  std::int64_t heads = 2;
  std::int64_t steps = 3;  ///< measured, after one that is not; the median is shown
  std::uint64_t seed = 1;
  std::function<void(std::string_view)> log;  ///< told what is being measured
};

struct CompareRow {
  std::int64_t context = 0;
  std::string backend;
  std::string kernels;              ///< those that ran
  double step_ms = 0;               ///< forward, backward and update of one window
  std::int64_t tensor_bytes = 0;    ///< peak in tensors, attention workspaces included
  std::int64_t resident_bytes = 0;  ///< peak resident set of the process
  double loss = 0;                  ///< of the last step
};

/// One row for each context and backend, in this order. Every row trains a fresh model on the same
/// random tokens.
std::vector<CompareRow> compare_attention(const CompareOptions& options);

/// The rows as a table for people, with a line on what was measured.
std::string compare_table(const CompareOptions& options, const std::vector<CompareRow>& rows);

}  // namespace fovea::lm
