#include "calls.h"

#include <exception>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <fovea/introspect.h>

#include "call.h"
#include "errors.h"

namespace fovea::python {
namespace {

using Reasons = std::vector<std::pair<std::string, std::string>>;

void* stream_of(std::uintptr_t stream) { return reinterpret_cast<void*>(stream); }

/// Memory for one run from a Python function, `allocate(bytes)`, which gives an array of bytes: on
/// a device its owner knows when the memory may be used again. What it raises is raised by the
/// call.
class Allocation {
 public:
  Allocation(nb::handle allocate, void* stream) : allocate_(allocate), arrays_(stream) {}

  [[nodiscard]] WorkspaceSource source() {
    if (allocate_.is_none()) return {};
    return {this, [](void* self, std::size_t bytes) {
              return static_cast<Allocation*>(self)->memory(bytes);
            }};
  }
  void raise_if_failed() {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void* memory(std::size_t bytes) noexcept {
    const nb::gil_scoped_acquire acquire;
    try {
      kept_ = allocate_(bytes);
      return arrays_.write(kept_, "allocate").data;
    } catch (...) {
      failure_ = std::current_exception();
      return nullptr;
    }
  }

  nb::handle allocate_;
  nb::object kept_;
  Arrays arrays_;
  std::exception_ptr failure_;
};

/// f(options) with Python's lock released; raises what went wrong.
template <class F>
void run(std::uintptr_t stream, Job* job, nb::handle allocate, F&& f) {
  Allocation allocation(allocate, stream_of(stream));
  RunOptions options;
  options.stream = stream_of(stream);
  options.job = job;
  options.source = allocation.source();
  Status status;
  {
    const nb::gil_scoped_release release;
    status = f(options);
  }
  allocation.raise_if_failed();
  raise_unless_ok(status);
}

std::optional<Report> run_forward(const Config& config, nb::handle q, nb::handle k, nb::handle v,
                                  nb::handle out, nb::handle lse, nb::handle extras,
                                  std::uintptr_t stream, Job* job, nb::handle allocate,
                                  bool want_report) {
  const ForwardCall call(config, q, k, v, out, lse, extras, stream_of(stream));
  std::optional<Report> report;
  if (want_report) report.emplace();
  run(stream, job, allocate, [&](const RunOptions& options) {
    return forward(call.args(), {config.plan, options}, report ? &*report : nullptr);
  });
  return report;
}

std::optional<Report> run_backward(const Config& config, nb::handle q, nb::handle k, nb::handle v,
                                   nb::handle out, nb::handle lse, nb::handle dout, nb::handle dq,
                                   nb::handle dk, nb::handle dv, nb::handle extras,
                                   std::uintptr_t stream, Job* job, nb::handle allocate,
                                   bool want_report) {
  const BackwardCall call(config, q, k, v, out, lse, dout, dq, dk, dv, extras, stream_of(stream));
  std::optional<Report> report;
  if (want_report) report.emplace();
  run(stream, job, allocate, [&](const RunOptions& options) {
    return backward(call.args(), {config.plan, options}, report ? &*report : nullptr);
  });
  return report;
}

Reasons reasons_of(Result<std::vector<PassedOver>> result) {
  Reasons reasons;
  for (PassedOver& p : value_of(std::move(result)))
    reasons.emplace_back(std::move(p.kernel), std::move(p.reason));
  return reasons;
}

/// A plan with the config that it was made with.
struct PythonPlan {
  Config config;
  Plan plan;
};

void run_plan(const PythonPlan& plan, const auto& args, std::uintptr_t stream, Job* job,
              nb::handle allocate) {
  run(stream, job, allocate,
      [&](const RunOptions& options) { return plan.plan.run(args, options); });
}

void merge(const nb::list& outs, const nb::list& lses, nb::handle sinks, nb::handle out,
           nb::handle lse, std::uintptr_t stream) {
  if (outs.size() != lses.size())
    raise_value("lses", "as many as outs; got " + std::to_string(lses.size()) + " and " +
                            std::to_string(outs.size()));
  Arrays arrays(stream_of(stream));
  std::vector<PartialResult> parts;
  for (std::size_t n = 0; n < outs.size(); ++n)
    parts.push_back({arrays.read(outs[n], "outs"), arrays.read(lses[n], "lses")});
  const TensorView sink_view = arrays.read(sinks, "sinks");
  const MutableTensorView out_view = arrays.write(out, "out");
  const MutableTensorView lse_view = arrays.write(lse, "lse");
  Status status;
  {
    const nb::gil_scoped_release release;
    status = merge_partials(parts, sink_view, out_view, lse_view, MergeOptions{stream_of(stream)});
  }
  raise_unless_ok(status);
}

void bind_plans(nb::module_& module) {
  nb::class_<PythonPlan>(module, "Plan", "A validated call with its kernel chosen.")
      .def_static(
          "forward",
          [](const Config& config, nb::handle q, nb::handle k, nb::handle v, nb::handle out,
             nb::handle lse, nb::handle extras) {
            const ForwardCall call(config, q, k, v, out, lse, extras, nullptr);
            return PythonPlan{config, value_of(Plan::make(call.args(), config.plan))};
          },
          nb::arg("config"), nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
          nb::arg("lse").none() = nb::none(), nb::arg("extras").none() = nb::none())
      .def_static(
          "backward",
          [](const Config& config, nb::handle q, nb::handle k, nb::handle v, nb::handle out,
             nb::handle lse, nb::handle dout, nb::handle dq, nb::handle dk, nb::handle dv,
             nb::handle extras) {
            const BackwardCall call(config, q, k, v, out, lse, dout, dq, dk, dv, extras, nullptr);
            return PythonPlan{config, value_of(Plan::make(call.args(), config.plan))};
          },
          nb::arg("config"), nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
          nb::arg("lse"), nb::arg("dout").none(), nb::arg("dq").none(), nb::arg("dk").none(),
          nb::arg("dv").none(), nb::arg("extras").none() = nb::none())
      .def(
          "run_forward",
          [](const PythonPlan& plan, nb::handle q, nb::handle k, nb::handle v, nb::handle out,
             nb::handle lse, nb::handle extras, std::uintptr_t stream, Job* job,
             nb::handle allocate) {
            const ForwardCall call(plan.config, q, k, v, out, lse, extras, stream_of(stream));
            run_plan(plan, call.args(), stream, job, allocate);
          },
          nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
          nb::arg("lse").none() = nb::none(), nb::arg("extras").none() = nb::none(),
          nb::arg("stream") = 0, nb::arg("job").none() = nb::none(),
          nb::arg("allocate").none() = nb::none())
      .def(
          "run_backward",
          [](const PythonPlan& plan, nb::handle q, nb::handle k, nb::handle v, nb::handle out,
             nb::handle lse, nb::handle dout, nb::handle dq, nb::handle dk, nb::handle dv,
             nb::handle extras, std::uintptr_t stream, Job* job, nb::handle allocate) {
            const BackwardCall call(plan.config, q, k, v, out, lse, dout, dq, dk, dv, extras,
                                    stream_of(stream));
            run_plan(plan, call.args(), stream, job, allocate);
          },
          nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("lse"),
          nb::arg("dout").none(), nb::arg("dq").none(), nb::arg("dk").none(), nb::arg("dv").none(),
          nb::arg("extras").none() = nb::none(), nb::arg("stream") = 0,
          nb::arg("job").none() = nb::none(), nb::arg("allocate").none() = nb::none())
      .def_prop_ro("report", [](const PythonPlan& plan) { return plan.plan.report(); })
      .def_prop_ro("workspace_bytes",
                   [](const PythonPlan& plan) { return plan.plan.workspace_bytes(); });
}

}  // namespace

void bind_calls(nb::module_& module) {
  module.def("forward", &run_forward, nb::arg("config"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
             nb::arg("out"), nb::arg("lse").none(), nb::arg("extras").none(), nb::arg("stream"),
             nb::arg("job").none(), nb::arg("allocate").none(), nb::arg("want_report"));
  module.def("backward", &run_backward, nb::arg("config"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
             nb::arg("out"), nb::arg("lse"), nb::arg("dout").none(), nb::arg("dq").none(),
             nb::arg("dk").none(), nb::arg("dv").none(), nb::arg("extras").none(),
             nb::arg("stream"), nb::arg("job").none(), nb::arg("allocate").none(),
             nb::arg("want_report"));
  module.def(
      "why_not",
      [](const Config& config, nb::handle q, nb::handle k, nb::handle v, nb::handle out,
         nb::handle extras) {
        const ForwardCall call(config, q, k, v, out, nb::none(), extras, nullptr);
        return reasons_of(why_not(call.args(), config.plan));
      },
      nb::arg("config"), nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
      nb::arg("extras").none() = nb::none());
  module.def("merge_partials", &merge, nb::arg("outs"), nb::arg("lses"), nb::arg("sinks").none(),
             nb::arg("out"), nb::arg("lse").none(), nb::arg("stream") = 0);
  module.def("new_array", &new_array, nb::arg("shape"), nb::arg("dtype"), nb::arg("device"),
             nb::arg("index"));
  bind_plans(module);
}

}  // namespace fovea::python
