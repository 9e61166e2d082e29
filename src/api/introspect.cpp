
#include <fovea/introspect.h>

#include "api/complete_args.h"
#include "api/guarded.h"
#include "api/report_json.h"
#include "contract/format.h"
#include "core/json_text.h"
#include "core/kernel_table.h"
#include "core/select.h"
#include "core/self_check.h"
#include "core/status_macros.h"
#include "core/tuning_store.h"
#include "core/validate.h"

namespace fovea {
namespace {

const char* text_of(SelfCheck state) {
  switch (state) {
    case SelfCheck::not_run:
      return "not run";
    case SelfCheck::passed:
      return "passed";
    case SelfCheck::failed:
      return "failed";
  }
  return "unknown";
}

template <class Args>
Result<std::vector<PassedOver>> reasons(const Args& args, const PlanOptions& options) {
  const CompleteArgs<Args> complete(args);
  FOVEA_RETURN_IF_ERROR(complete.status());
  Result<Problem> problem = validate(*complete, options.deterministic);
  if (!problem.ok()) return problem.status();
  const EffectiveChoice choice = effective_choice(options.choice);
  std::vector<PassedOver> list;
  for (const Kernel* kernel : kernel_table()) {
    if (kernel->direction != problem->direction) continue;
    Refusal refusal = consider(*kernel, *problem, choice);
    if (refusal.serves() && options.self_check) refusal = check_instantiation(*kernel, *problem);
    list.push_back({kernel->id, render(refusal)});
  }
  return list;
}

template <class Args>
Result<std::vector<PassedOver>> support(const Args& args) {
  const CompleteArgs<Args> complete(args);
  FOVEA_RETURN_IF_ERROR(complete.status());
  const Result<Problem> problem = validate(*complete, /*deterministic=*/false);
  if (!problem.ok()) return problem.status();
  std::vector<PassedOver> list;
  for (const Kernel* kernel : kernel_table())
    if (kernel->direction == problem->direction && kernel->device == problem->device.type)
      list.push_back({kernel->id, render(kernel->supports(*problem))});
  return list;
}

/// A plain f32 call of the kernel's direction, for the check of its common instantiation.
Problem common_problem(const Kernel& kernel) {
  Problem problem;
  problem.direction = kernel.direction;
  problem.device = {kernel.device, 0};
  const TensorView q(nullptr, DType::f32, {1, 2, 64, 64}, problem.device);
  problem.params.q = problem.params.k = problem.params.v = q;
  problem.out.dtype = problem.saved_out.dtype = problem.dout.dtype = DType::f32;
  problem.batch = 1;
  problem.q_heads = problem.kv_heads = 2;
  problem.q_len = problem.kv_len = problem.head_dim = problem.v_head_dim = 64;
  problem.compute = DType::f32;
  problem.scale = 0.125;
  return problem;
}

}  // namespace

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> all;
  for (const Backend* backend : backend_table())
    for (DeviceInfo& info : backend->devices()) all.push_back(std::move(info));
  return all;
}

std::vector<KernelInfo> kernels() {
  std::vector<KernelInfo> list;
  const auto table = kernel_table();
  for (std::size_t n = 0; n < table.size(); ++n) {
    const Kernel& kernel = *table[n];
    KernelInfo info;
    info.id = kernel.id;
    info.backend = kernel.backend;
    info.family = kernel.family;
    info.device = kernel.device;
    info.direction = name_of(kernel.direction);
    info.priority = static_cast<int>(10 * (table.size() - n));
    info.explicit_only = kernel.explicit_only;
    info.specialist = kernel.specialist;
    const Refusal refusal = kernel.available({kernel.device, 0});
    info.available = refusal.serves();
    info.reason = render(refusal);
    SelfCheckState check = self_check_state(kernel);
    info.self_check = check.state;
    info.self_check_detail = std::move(check.detail);
    list.push_back(std::move(info));
  }
  return list;
}

std::vector<AbsentBackend> absent_backends() {
  std::vector<AbsentBackend> list;
  for (const build::Absent& absent : absent_backend_table())
    list.push_back({absent.backend, absent.reason});
  for (const Backend* backend : backend_table())
    if (backend->unavailable != nullptr && backend->devices().empty())
      list.push_back({name_of(backend->device), backend->unavailable()});
  return list;
}

Result<std::vector<PassedOver>> why_not(const ForwardArgs& args, const PlanOptions& options) {
  return guarded([&] { return reasons(args, options); });
}
Result<std::vector<PassedOver>> why_not(const BackwardArgs& args, const PlanOptions& options) {
  return guarded([&] { return reasons(args, options); });
}

Result<std::vector<PassedOver>> support_of(const ForwardArgs& args) {
  return guarded([&] { return support(args); });
}
Result<std::vector<PassedOver>> support_of(const BackwardArgs& args) {
  return guarded([&] { return support(args); });
}

Status run_self_checks() {
  return guarded([]() -> Status {
    std::string failures;
    for (const Kernel* kernel : kernel_table()) {
      const Problem problem = common_problem(*kernel);
      if (!kernel->available(problem.device).serves() || !kernel->supports(problem).serves())
        continue;
      const Refusal refusal = check_instantiation(*kernel, problem);
      if (!refusal.serves())
        failures += formatted("{}{} {}", failures.empty() ? "" : "; ", kernel->id, render(refusal));
    }
    if (failures.empty()) return {};
    return {StatusCode::internal, "[self-check] " + failures};
  });
}

std::vector<TunedChoice> tuned_choices() { return known_tunings(); }
std::string tuned_choices_file() { return tuning_file(); }

std::string info_json() {
  std::string device_list, kernel_list, absent_list;
  for (const DeviceInfo& d : devices())
    device_list += formatted(
        "{}{{\"type\":{},\"index\":{},\"name\":{},\"capabilities\":{},\"threads\":{},"
        "\"emulated\":{}}}",
        device_list.empty() ? "" : ",", json_quoted(name_of(d.device.type)), d.device.index,
        json_quoted(d.name), json_quoted(d.capabilities), d.threads, d.emulated);
  for (const KernelInfo& k : kernels())
    kernel_list += formatted(
        "{}{{\"id\":{},\"backend\":{},\"family\":{},\"direction\":{},\"priority\":{},"
        "\"explicit_only\":{},\"specialist\":{},\"available\":{},\"reason\":{},\"self_check\":{},"
        "\"self_check_detail\":{}}}",
        kernel_list.empty() ? "" : ",", json_quoted(k.id), json_quoted(k.backend),
        json_quoted(k.family), json_quoted(k.direction), k.priority, k.explicit_only, k.specialist,
        k.available, json_quoted(k.reason), json_quoted(text_of(k.self_check)),
        json_quoted(k.self_check_detail));
  for (const AbsentBackend& a : absent_backends())
    absent_list += formatted("{}{{\"backend\":{},\"reason\":{}}}", absent_list.empty() ? "" : ",",
                             json_quoted(a.backend), json_quoted(a.reason));
  std::string tuned_list;
  for (const TunedChoice& choice : tuned_choices())
    tuned_list +=
        formatted("{}{{\"call\":{},\"kernel\":{},\"kernels\":{}}}", tuned_list.empty() ? "" : ",",
                  json_quoted(choice.call), json_quoted(choice.kernel), json_of(choice.kernels));
  return formatted(
      "{{\"version\":{},\"library\":{},\"devices\":[{}],\"kernels\":[{}],\"absent_backends\":[{}],"
      "\"tuned\":[{}],\"tuned_file\":{}}}",
      json_quoted(version()), json_quoted(library_path()), device_list, kernel_list, absent_list,
      tuned_list, json_quoted(tuned_choices_file()));
}

}  // namespace fovea
