// Refusal: why a kernel does not serve a problem, kept as code and arguments, rendered when asked.
#pragma once

#include <cstdint>
#include <string>

#include "contract/problem.h"

namespace fovea {

enum class RefusalCode : std::uint8_t {
  none,               ///< it serves
  feature,            ///< a = Feature bit
  compute_dtype,      ///< a = DType found; text = dtypes served
  head_dim,           ///< a = head_dim found, b = limit
  v_head_dim,         ///< a = v_head_dim found, b = limit
  q_len,              ///< a = q_len found, b = limit
  query_rows,         ///< a = rows of q that share a KV head, b = limit
  instruction_set,    ///< text = what this CPU lacks
  limited_by_env,     ///< text = the environment variable
  device_type,        ///< a = DeviceType found
  self_check_failed,  ///< value = measured error, limit = what was allowed
  explicit_only,      ///< serves, but only when asked for by name
  not_chosen,         ///< text = the choice in force
  slower,             ///< value = measured ms, limit = those of the choice
  other,              ///< text = the whole reason
};

/// Trivially copyable; `text` points to static storage.
struct Refusal {
  RefusalCode code = RefusalCode::none;
  std::int64_t a = 0, b = 0;
  double value = 0, limit = 0;
  const char* text = "";

  [[nodiscard]] bool serves() const { return code == RefusalCode::none; }

  static constexpr Refusal accept() { return {}; }
  static Refusal because(RefusalCode code, std::int64_t a = 0, std::int64_t b = 0,
                         const char* text = "") {
    Refusal refusal;
    refusal.code = code;
    refusal.a = a;
    refusal.b = b;
    refusal.text = text;
    return refusal;
  }
  static Refusal because(RefusalCode code, const char* text) { return because(code, 0, 0, text); }
};

/// The reason in words, with its values: "head_dim 320 > 256".
std::string render(const Refusal& refusal);
/// The kind of reason without its values, for counters: "feature: dropout", "head_dim".
std::string kind_of(const Refusal& refusal);

/// Refuses the first feature of the problem that is not in `served`.
Refusal refuse_features_beyond(const Problem& problem, Features served);
/// Refuses rows wider than kMaxHeadDim.
Refusal refuse_wide_heads(const Problem& problem);
/// What flash kernels for f32, f16 and bf16 refuse: f64, wide rows, features that are not in
/// `served`.
Refusal refuse_beyond_flash(const Problem& problem, Features served);

}  // namespace fovea
