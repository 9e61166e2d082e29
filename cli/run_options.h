// The options of `fovea run` and the call they describe.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include <fovea/attention.h>
#include <fovea/plan.h>
#include <fovea/status.h>

#include "io/array.h"

namespace CLI {
class App;
}

namespace fovea::cli {

/// What was given on the command line.
struct RunSettings {
  std::vector<std::string> q, k, v, q_norm_weights, k_norm_weights;
  std::string mask, alibi, sinks, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table;
  std::string rope_cos, rope_sin, rope_q_offsets, rope_k_offsets;
  std::string dout, dlse;

  std::string out, lse, dq, dk, dv, dmask, dsinks;

  std::string layout = "bhsd", causal, anchor;
  std::vector<std::string> window;
  std::optional<double> scale;
  double softcap = 0, dropout = 0, norm_eps = 1e-6;
  std::uint64_t seed = 0, offset = 0;
  std::int64_t max_q_len = 0, max_kv_len = 0;
  bool qk_norm = false, rope_keys_are_rotated = false;
  std::string rope_style = "interleaved", rope_table = "half";
  std::int64_t rotary_dim = 0, rope_q_offset = 0, rope_k_offset = 0;
  std::string cast;
  bool f32_out = false, f32_grads = false, tf32 = false;

  bool backward = false;
  std::string device = "cpu", kernel, backend;
  bool strict = false, no_self_check = false;
  int threads = 0;
};

void add_run_options(CLI::App& command, RunSettings& settings);

/// What is wrong with the options together; files are not read for it.
Status check_usage(const RunSettings& settings);

/// The device to compute on.
Device device_of(const RunSettings& settings);

/// The files to be written.
std::vector<std::string> outputs_of(const RunSettings& settings);

/// Tensors read from files; views of them stay valid as long as it lives.
class LoadedCall {
 public:
  Status load(const RunSettings& settings);

  AttentionParams params;
  Operand dout;
  TensorView dlse;
  DType compute = DType::none;  ///< as far as dtypes tell; the library decides

  [[nodiscard]] std::deque<io::Array>& arrays() { return arrays_; }

 private:
  /// An absent view for an empty name.
  Status load_view(const std::string& name, TensorView& view);
  Status load_operand(const RunSettings& settings, const std::vector<std::string>& names,
                      const std::vector<std::string>& weights, Operand& operand);
  void set_band(const RunSettings& settings);
  Status set_rope(const RunSettings& settings);

  std::deque<io::Array> arrays_;
};

}  // namespace fovea::cli
