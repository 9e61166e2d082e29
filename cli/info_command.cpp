// fovea info: devices, kernels, absent backends, and why a kernel would not serve a case.
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <fovea/fovea.h>

#include "cases/device_copies.h"
#include "cases/outputs.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/support_matrix.h"

namespace fovea::cli {
namespace {

struct Settings {
  bool json = false, self_check = false, matrix = false;
  std::string why_not;
};

const char* text_of(SelfCheck state) {
  switch (state) {
    case SelfCheck::not_run:
      return "not run";
    case SelfCheck::passed:
      return "passed";
    default:
      return "FAILED";
  }
}

void print_kernels(const char* direction) {
  fmt::print("\n{} kernels, best first\n", direction);
  for (const KernelInfo& kernel : kernels()) {
    if (kernel.direction != direction) continue;
    fmt::print("  {:<24} {:<10} ", kernel.id, kernel.family);
    if (kernel.explicit_only) {
      fmt::print("{:<14} ", "by name only");
    } else {
      fmt::print("{:<14} ", fmt::format("priority {}", kernel.priority));
    }
    if (!kernel.available) {
      fmt::print("not available: {}\n", kernel.reason);
      continue;
    }
    fmt::print("available, self-check {}{}{}\n", text_of(kernel.self_check),
               kernel.self_check_detail.empty() ? "" : ": ", kernel.self_check_detail);
  }
}

void print_info() {
  fmt::print("fovea {}  {}\n", version(), library_path());
  for (const DeviceInfo& device : devices()) {
    const std::string threads = device.device.type == DeviceType::cpu
                                    ? fmt::format("{} threads; ", device.threads)
                                    : std::string();
    fmt::print("device {}:{}  {}  ({}{})\n", name_of(device.device.type), device.device.index,
               device.name, threads, device.capabilities);
  }
  print_kernels("forward");
  print_kernels("backward");
  if (const std::vector<TunedChoice> tuned = tuned_choices(); !tuned.empty()) {
    fmt::print("\nmeasured choices, kept in {}\n", tuned_choices_file());
    for (const TunedChoice& choice : tuned) {
      fmt::print("  {:<24} {}\n", choice.kernel, choice.call);
      for (const TunedKernel& kernel : choice.kernels) {
        fmt::print("    {:<22} {:.4g} ms\n", kernel.kernel, kernel.ms);
      }
    }
  }
  const std::vector<AbsentBackend> absent = absent_backends();
  if (!absent.empty()) fmt::print("\nbackends that are not part of this build or find no device\n");
  for (const AbsentBackend& backend : absent) {
    fmt::print("  {:<8} {}\n", backend.backend, backend.reason);
  }
}

/// Each kernel's reason for the case, forward and backward; the contract's where it refuses.
nlohmann::ordered_json reasons_for(const cases::Case& spec) {
  const std::unique_ptr<cases::Inputs> inputs = cases::make_inputs(spec, cases::default_seed(spec));
  const cases::Outputs forward = cases::make_forward_outputs(*inputs, cases::Width::as_asked);
  const cases::Saved saved{cases::make_like_out(spec, inputs->lengths, spec.out_dtype()),
                           cases::make_like_lse(spec, inputs->lengths)};
  const cases::Outputs backward = cases::make_backward_outputs(*inputs, cases::Width::as_asked);
  nlohmann::ordered_json reasons;
  // Each kernel is asked about tensors on its own kind of device.
  std::set<DeviceType> types;
  for (const KernelInfo& kernel : kernels()) types.insert(kernel.device);
  const auto add = [&](const char* direction, const auto& args) {
    nlohmann::ordered_json& list = reasons[direction];
    list = nlohmann::ordered_json::object();
    for (const DeviceType type : types) {
      const auto answers = why_not(cases::as_on({type, 0}, args));
      if (!answers) {
        list["every kernel"] = answers.status().message();
        return;
      }
      for (const PassedOver& entry : *answers) {
        if (cases::device_of(entry.kernel).type == type) list[entry.kernel] = entry.reason;
      }
    }
  };
  add("forward", cases::forward_args(*inputs, forward));
  add("backward", cases::backward_args(*inputs, saved, backward));
  return reasons;
}

int print_matrix() {
  const Result<std::string> page = support_matrix();
  if (!page) return complain("info", page.status().message(), kFailure);
  fmt::print("{}", *page);
  return kSuccess;
}

int run_info(const Settings& settings) {
  if (settings.matrix) return print_matrix();
  Result<cases::Case> spec = cases::Case{};
  if (!settings.why_not.empty()) {
    spec = cases::parse_case(settings.why_not);
    if (!spec) return complain("info", spec.status().message(), kUsage);
  }
  int exit_code = kSuccess;
  if (settings.self_check) {
    if (Status status = run_self_checks(); !status.ok()) {
      exit_code = complain("info", status.message(), kFailure);
    }
    for (const KernelInfo& kernel : kernels()) {
      if (kernel.self_check == SelfCheck::failed) exit_code = kFailure;
    }
  }
  if (settings.json) {
    nlohmann::ordered_json info = nlohmann::ordered_json::parse(info_json());
    if (!settings.why_not.empty()) info["why_not"] = reasons_for(*spec);
    fmt::print("{}\n", info.dump(2));
    return exit_code;
  }
  print_info();
  if (settings.why_not.empty()) return exit_code;
  fmt::print("\n{}\n", settings.why_not);
  const nlohmann::ordered_json reasons = reasons_for(*spec);
  for (const auto& [direction, list] : reasons.items()) {
    for (const auto& [kernel, reason] : list.items()) {
      const auto text = reason.get<std::string>();
      fmt::print("  {:<24} {}\n", kernel, text.empty() ? "serves" : text);
    }
  }
  return exit_code;
}

}  // namespace

void add_info_command(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<Settings>();
  CLI::App* command = app.add_subcommand(
      "info", "Show the version, devices, kernels with their state, and absent backends");
  command->add_flag("--json", settings->json, "Print one JSON object");
  command->add_flag("--self-check", settings->self_check,
                    "Run the self-check of every available kernel first; exit 1 if one fails");
  command->add_option("--why-not", settings->why_not,
                      "A case name: say for each kernel why it would not serve it");
  command
      ->add_flag("--matrix", settings->matrix,
                 "Print what each kernel serves as a page, docs/support-matrix.md; nothing else")
      ->excludes("--json", "--self-check", "--why-not");
  command->callback([settings, &exit_code] { exit_code = run_info(*settings); });
}

}  // namespace fovea::cli
