// fovea run: attention on tensors in files.
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <fovea/fovea.h>

#include "cases/device_copies.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/run_options.h"
#include "io/atomic_file.h"
#include "io/tensor_file.h"

namespace fovea::cli {
namespace {

/// Results in memory, and the files they go to.
class Results {
 public:
  /// A row-major tensor of the given dtype in the shape of `like` (as it lies in files).
  Status add(const std::string& file, DType dtype, const TensorView& like, bool bshd,
             MutableTensorView& view) {
    std::vector<std::int64_t> shape(like.shape.begin(), like.shape.begin() + like.rank);
    const bool swapped = bshd && shape.size() == 4;
    if (swapped) std::swap(shape[1], shape[2]);
    Result<io::Array> array = io::make_array(dtype, std::move(shape));
    if (!array) return array.status();
    arrays_.push_back(std::move(*array));
    Result<MutableTensorView> made = io::view_of(arrays_.back());
    if (!made) return made.status();
    view = *made;
    if (swapped) {
      std::swap(view.shape[1], view.shape[2]);
      std::swap(view.strides[1], view.strides[2]);
    }
    if (file.empty()) return {};
    Result<io::TensorPlace> place = io::parse_place(file);
    if (!place) return place.status();
    files_.push_back({std::move(*place), &arrays_.back()});
    return {};
  }
  [[nodiscard]] std::deque<io::Array>& arrays() { return arrays_; }
  [[nodiscard]] Status check() const { return io::check_types(files_); }
  [[nodiscard]] Status store() const { return io::store_tensors(files_); }

 private:
  std::deque<io::Array> arrays_;
  std::vector<io::TensorResult> files_;
};

TensorView shape_like(const TensorView& view, std::int64_t last) {
  TensorView like = view;
  like.shape[static_cast<std::size_t>(like.rank - 1)] = last;
  return like;
}

/// out has the shape of q with v's last dimension; LSE drops it (packed: [heads, rows]).
Status add_forward(const RunSettings& s, const LoadedCall& call, Results& results,
                   ForwardArgs& args) {
  const bool bshd = s.layout == "bshd";
  TensorView q = call.params.q.segments[0].tensor;
  const TensorView& v = call.params.v.segments[0].tensor;
  const auto last_of = [](const TensorView& view) {
    return view.rank < 3 ? 0 : view.shape[static_cast<std::size_t>(view.rank - 1)];
  };
  // The library says what is wrong then; an empty file is no reason to allocate a large result.
  if (last_of(q) == 0 || last_of(v) == 0) return {};
  for (int n = 1; n < call.params.q.count; ++n) {
    q.shape[2] += call.params.q.segments[n].tensor.shape[2];
  }
  const bool packed = q.rank == 3;
  const DType dtype = s.f32_out ? DType::f32 : call.compute;
  MutableTensorView out;
  if (Status status = results.add(s.out, dtype, shape_like(q, last_of(v)), bshd, out);
      !status.ok()) {
    return status;
  }
  args.out = out;
  if (s.lse.empty() && !s.backward) return {};
  TensorView lse = q;
  --lse.rank;
  if (packed) std::swap(lse.shape[0], lse.shape[1]);
  const DType lse_dtype = call.compute == DType::f64 ? DType::f64 : DType::f32;
  return results.add(s.lse, lse_dtype, lse, false, args.lse);
}

Status add_gradient(const RunSettings& s, const std::string& file, const Operand& input,
                    Results& results, MutableOperand& gradient) {
  if (file.empty()) return {};
  if (input.count != 1) {
    return {StatusCode::invalid, fmt::format("{}: gradients of several segments cannot be stored "
                                             "in one file; got {} segments",
                                             file, input.count)};
  }
  const TensorView& tensor = input.segments[0].tensor;
  MutableTensorView view;
  const Status status =
      results.add(file, s.f32_grads ? DType::f32 : tensor.dtype, tensor, s.layout == "bshd", view);
  gradient = view;
  return status;
}

Status add_backward(const RunSettings& s, const LoadedCall& call, Results& results,
                    BackwardArgs& args) {
  const AttentionParams& p = call.params;
  if (Status status = add_gradient(s, s.dq, p.q, results, args.dq); !status.ok()) return status;
  if (Status status = add_gradient(s, s.dk, p.k, results, args.dk); !status.ok()) return status;
  if (Status status = add_gradient(s, s.dv, p.v, results, args.dv); !status.ok()) return status;
  const auto add_like = [&](const std::string& file, const TensorView& input,
                            MutableTensorView& view) -> Status {
    if (file.empty()) return {};
    return results.add(file, s.f32_grads ? DType::f32 : input.dtype, input, false, view);
  };
  if (Status status = add_like(s.dmask, p.mask, args.dmask); !status.ok()) return status;
  return add_like(s.dsinks, p.sinks, args.dsinks);
}

void print_report(const Report& report) {
  fmt::print(
      "ran {} on {}:{}, workspace {} bytes{}{}\n", report.kernel, name_of(report.device.type),
      report.device.index, report.workspace_bytes,
      report.staged_copies > 0 ? fmt::format(", {} staged copies", report.staged_copies) : "",
      report.fused_prologue ? ", prologue fused" : "");
  for (const PassedOver& other : report.passed_over) {
    fmt::print("  passed over {}: {}\n", other.kernel, other.reason);
  }
}

/// "cpu.avx2.forward" serves backward as "cpu.avx2.backward".
std::string counterpart(const std::string& kernel) {
  constexpr std::string_view kForward = ".forward";
  if (!kernel.ends_with(kForward)) return kernel;
  return kernel.substr(0, kernel.size() - kForward.size()) + ".backward";
}

/// Copies of all tensors of a call on its device.
Status copy_all(LoadedCall& call, Results& results, cases::DeviceCopies& copies) {
  for (std::deque<io::Array>* arrays : {&call.arrays(), &results.arrays()}) {
    for (io::Array& array : *arrays) {
      if (Status status = copies.add(array.data.data(), array.data.size()); !status.ok()) {
        return status;
      }
    }
  }
  return {};
}

Status fetch_results(Results& results, const Device& device, cases::DeviceCopies& copies) {
  if (Status status = synchronize(device); !status.ok()) return status;
  for (io::Array& array : results.arrays()) {
    if (Status status = copies.fetch(array.data.data()); !status.ok()) return status;
  }
  return flush();
}

Status compute_and_store(const RunSettings& s) {
  LoadedCall call;
  if (Status status = call.load(s); !status.ok()) return status;
  Results results;
  ForwardArgs forward_args;
  forward_args.params = call.params;
  if (Status status = add_forward(s, call, results, forward_args); !status.ok()) return status;
  BackwardArgs backward_args;
  backward_args.params = call.params;
  if (s.backward) {
    if (Status status = add_backward(s, call, results, backward_args); !status.ok()) return status;
  }
  if (Status status = results.check(); !status.ok()) return status;

  const Device device = device_of(s);
  const bool on_cpu = device.type == DeviceType::cpu;
  cases::DeviceCopies copies(device);
  if (!on_cpu) {
    if (Status status = copy_all(call, results, copies); !status.ok()) return status;
  }
  const auto placed = [&](const auto& args) { return on_cpu ? args : copies.moved(args); };
  CallOptions options;
  options.plan.choice = {s.kernel, s.backend, s.strict};
  options.plan.self_check = !s.no_self_check;
  options.plan.num_threads = s.threads;
  Report report;
  if (Status status = forward(placed(forward_args), options, &report); !status.ok()) return status;
  print_report(report);
  if (s.backward) {
    backward_args.out = TensorView(forward_args.out.segments[0].tensor);
    backward_args.lse = forward_args.lse;
    backward_args.dout = call.dout;
    backward_args.dlse = call.dlse;
    options.plan.choice.kernel = counterpart(s.kernel);
    if (Status status = backward(placed(backward_args), options, &report); !status.ok())
      return status;
    print_report(report);
  }
  if (!on_cpu) {
    if (Status status = fetch_results(results, device, copies); !status.ok()) return status;
  }
  return results.store();
}

/// The outputs are where they can be written.
Status check_writable(const RunSettings& s) {
  for (const std::string& file : outputs_of(s)) {
    if (Status status = io::check_writable(io::parse_place(file)->path); !status.ok())
      return status;
  }
  return {};
}

int run(const RunSettings& s) {
  if (Status status = check_usage(s); !status.ok()) {
    return complain("run", status.message(), kUsage);
  }
  Status status = check_writable(s);
  if (status.ok()) status = compute_and_store(s);
  return status.ok() ? kSuccess : complain("run", status.message(), kFailure);
}

}  // namespace

void add_run_command(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<RunSettings>();
  CLI::App* command = app.add_subcommand(
      "run",
      "Compute attention on tensors in files and report the kernel that ran. Outputs appear whole "
      "or not at all.");
  add_run_options(*command, *settings);
  command->callback([settings, &exit_code] { exit_code = run(*settings); });
}

}  // namespace fovea::cli
