#include "core/select.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "contract/format.h"
#include "core/kernel_table.h"
#include "core/self_check.h"
#include "core/status_macros.h"

namespace fovea {
namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

/// "cpu.avx512" and "cpu.avx512.forward" both name the forward kernel in a forward call, so that
/// one choice can serve a pair.
bool names_kernel(std::string_view choice, const Kernel& kernel) {
  const std::string_view id = kernel.id;
  if (choice == id) return true;
  return id.size() > choice.size() && id.substr(0, choice.size()) == choice &&
         id.substr(choice.size() + 1) == name_of(kernel.direction) && id[choice.size()] == '.';
}

bool names_backend(std::string_view choice, const Kernel& kernel) {
  return choice == kernel.backend || choice == kernel.family;
}

template <class Matches>
bool any_kernel(Matches&& matches) {
  for (const Kernel* kernel : kernel_table())
    if (matches(*kernel)) return true;
  return false;
}

Status check_names(const Problem& problem, const EffectiveChoice& choice) {
  const auto fail = [&](const char* what, const std::string& value, auto&& list) -> Status {
    std::string known;
    for (const Kernel* kernel : kernel_table()) {
      const std::string name = list(*kernel);
      if (name.empty() || known.find(name) != std::string::npos) continue;
      known += (known.empty() ? "" : ", ") + name;
    }
    return {StatusCode::invalid,
            formatted("[{}] unknown {} \"{}\" from {}; known: {}", name_of(problem.direction), what,
                      value, choice.source, known)};
  };
  if (!choice.kernel.empty() &&
      !any_kernel([&](const Kernel& k) { return names_kernel(choice.kernel, k); }))
    return fail("kernel", choice.kernel, [](const Kernel& k) -> std::string { return k.id; });
  if (!choice.backend.empty() &&
      !any_kernel([&](const Kernel& k) { return names_backend(choice.backend, k); }))
    return fail("backend", choice.backend,
                [](const Kernel& k) { return std::string(k.backend) + " " + k.family; });
  return {};
}

bool is_exclusion(RefusalCode code) {
  return code == RefusalCode::not_chosen || code == RefusalCode::explicit_only ||
         code == RefusalCode::instruction_set || code == RefusalCode::limited_by_env;
}

std::string reasons(const Selection& selection, const Problem& problem) {
  std::string text;
  bool excluded = false;
  for (const Considered& c : selection.passed_over) {
    excluded = excluded || c.refusal.code == RefusalCode::not_chosen;
    if (c.refusal.code == RefusalCode::not_chosen) continue;
    text += formatted("{}{} — {}", text.empty() ? "" : "; ", c.kernel->id, render(c.refusal));
  }
  if (!text.empty()) return text;
  if (excluded)
    return formatted("it names no {} kernel for {}", name_of(problem.direction),
                     name_of(problem.device.type));
  return "no kernel of this build runs there";
}

}  // namespace

const Considered* Selection::preferred() const {
  for (std::size_t n = 0; n < std::min(by_priority, passed_over.size()); ++n) {
    const Considered& c = passed_over[n];
    const bool not_its_class =
        c.kernel->specialist && c.refusal.code != RefusalCode::self_check_failed;
    if (!is_exclusion(c.refusal.code) && !not_its_class) return &c;
  }
  return nullptr;
}

EffectiveChoice effective_choice(const Choice& choice) {
  EffectiveChoice effective{choice.kernel, choice.backend, choice.strict, "the call's choice"};
  if (!effective.kernel.empty() || !effective.backend.empty()) return effective;
  effective.kernel = environment("FOVEA_KERNEL");
  if (!effective.kernel.empty()) {
    effective.source = "FOVEA_KERNEL";
    return effective;
  }
  effective.backend = environment("FOVEA_BACKEND");
  if (effective.backend == "auto") effective.backend.clear();
  effective.source = "FOVEA_BACKEND";
  return effective;
}

Refusal consider(const Kernel& kernel, const Problem& problem, const EffectiveChoice& choice) {
  if (kernel.device != problem.device.type)
    return Refusal::because(RefusalCode::device_type,
                            static_cast<std::int64_t>(problem.device.type));
  if (!choice.kernel.empty() && !names_kernel(choice.kernel, kernel))
    return Refusal::because(RefusalCode::not_chosen, choice.source);
  if (!choice.backend.empty() && !names_backend(choice.backend, kernel))
    return Refusal::because(RefusalCode::not_chosen, choice.source);
  if (Refusal refusal = kernel.available(problem.device); !refusal.serves()) return refusal;
  if (Refusal refusal = kernel.supports(problem); !refusal.serves()) return refusal;
  // The CPU backend's name alone does not ask for the oracle.
  const bool asked = !choice.kernel.empty() || choice.backend == kernel.family;
  if (kernel.explicit_only && !asked) return Refusal::because(RefusalCode::explicit_only);
  if (kernel.steps_back != nullptr && choice.kernel.empty())
    return kernel.steps_back(problem.device);
  return Refusal::accept();
}

Result<Selection> select(const Problem& problem, const EffectiveChoice& choice, bool self_check) {
  FOVEA_RETURN_IF_ERROR(check_names(problem, choice));
  Selection selection;
  for (const Kernel* kernel : kernel_table()) {
    if (kernel->direction != problem.direction || kernel->device != problem.device.type) continue;
    Refusal refusal = consider(*kernel, problem, choice);
    if (refusal.serves() && self_check) refusal = check_instantiation(*kernel, problem);
    if (refusal.serves()) {
      selection.kernel = kernel;
      break;
    }
    selection.passed_over.push_back({kernel, refusal});
  }
  const char* where = name_of(problem.direction);
  if (selection.kernel == nullptr) {
    std::string chosen;
    if (!choice.kernel.empty())
      chosen = formatted(" under kernel \"{}\" from {}", choice.kernel, choice.source);
    if (!choice.backend.empty())
      chosen = formatted(" under backend \"{}\" from {}", choice.backend, choice.source);
    return Status(StatusCode::unsupported, formatted("[{}] no kernel serves this call{}: {}", where,
                                                     chosen, reasons(selection, problem)));
  }
  if (const Considered* preferred = selection.preferred(); choice.strict && preferred != nullptr)
    return Status(
        StatusCode::unsupported,
        formatted("[{}] strict: {} — {}; {} would serve instead", where, preferred->kernel->id,
                  render(preferred->refusal), selection.kernel->id));
  return selection;
}

}  // namespace fovea
