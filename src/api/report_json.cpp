#include "api/report_json.h"

#include "contract/format.h"
#include "core/json_text.h"

namespace fovea {

std::string json_of(const std::vector<TunedKernel>& kernels) {
  std::string list;
  for (const TunedKernel& k : kernels)
    list += formatted("{}{{\"kernel\":{},\"ms\":{:.6g}}}", list.empty() ? "" : ",",
                      json_quoted(k.kernel), k.ms);
  return "[" + list + "]";
}

std::string json_of(const Report& r) {
  std::string passed_over;
  for (const PassedOver& p : r.passed_over)
    passed_over += formatted("{}{{\"kernel\":{},\"reason\":{}}}", passed_over.empty() ? "" : ",",
                             json_quoted(p.kernel), json_quoted(p.reason));
  return formatted(
      "{{\"kernel\":{},\"device\":{},\"index\":{},\"workspace_bytes\":{},\"fallback\":{},"
      "\"passed_over\":[{}],\"staged_copies\":{},\"fused_prologue\":{},"
      "\"tuned\":{{\"measured\":{},\"known\":{},\"kernels\":{},\"note\":{}}}}}",
      json_quoted(r.kernel), json_quoted(name_of(r.device.type)), r.device.index, r.workspace_bytes,
      r.fallback, passed_over, r.staged_copies, r.fused_prologue, r.tuned.measured, r.tuned.known,
      json_of(r.tuned.kernels), json_quoted(r.tuned.note));
}

}  // namespace fovea
