#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <fovea/introspect.h>

#include "calls.h"
#include "errors.h"

namespace nb = nanobind;

namespace fovea::python {
namespace {

constexpr std::string_view kLevels[] = {"off", "proof", "all"};

void set_level(const std::string& level) {
  for (std::size_t n = 0; n < std::size(kLevels); ++n)
    if (level == kLevels[n]) return set_proof_level(static_cast<ProofLevel>(n));
  raise_value("level", "off, proof or all; got \"" + level + "\"");
}

/// Lines arrive on whatever thread settles a run, with or without Python's lock. What the sink
/// raises is reported as unraisable: a line of proof never fails a call.
void set_sink(nb::object sink) {
  std::function<void(std::string_view)> function;
  if (!sink.is_none()) {
    const std::shared_ptr<nb::object> held(new nb::object(std::move(sink)), [](nb::object* object) {
      const nb::gil_scoped_acquire acquire;
      delete object;
    });
    function = [held](std::string_view line) {
      const nb::gil_scoped_acquire acquire;
      try {
        (*held)(nb::str(line.data(), line.size()));
      } catch (nb::python_error& error) {
        error.discard_as_unraisable("the sink of fovea's proof lines");
      }
    };
  }
  const nb::gil_scoped_release release;
  set_proof_sink(std::move(function));
}

}  // namespace

void bind_reports(nb::module_& module) {
  nb::class_<Report>(module, "Report", "How one call was served.")
      .def_ro("kernel", &Report::kernel)
      .def_prop_ro("device",
                   [](const Report& r) {
                     return std::string(name_of(r.device.type)) + ":" +
                            std::to_string(r.device.index);
                   })
      .def_ro("workspace_bytes", &Report::workspace_bytes)
      .def_ro("fallback", &Report::fallback)
      .def_ro("staged_copies", &Report::staged_copies)
      .def_ro("fused_prologue", &Report::fused_prologue)
      .def_prop_ro("passed_over",
                   [](const Report& r) {
                     std::vector<std::pair<std::string, std::string>> list;
                     for (const PassedOver& p : r.passed_over)
                       list.emplace_back(p.kernel, p.reason);
                     return list;
                   })
      .def("__repr__", [](const Report& r) { return "<fovea.Report kernel=" + r.kernel + ">"; });

  nb::class_<Job>(module, "Job", "A unit of work for which each kernel is proved once.")
      .def(nb::init<std::string>(), nb::arg("name"))
      .def_prop_ro("name", &Job::name)
      .def_prop_ro("kernels_ran",
                   [](const Job& job) {
                     const nb::gil_scoped_release release;
                     return job.kernels_ran();
                   })
      .def("flush",
           [](Job& job) {
             Status status;
             {
               const nb::gil_scoped_release release;
               status = job.flush();
             }
             raise_unless_ok(status);
           })
      .def("__repr__", [](const Job& job) { return "<fovea.Job " + job.name() + ">"; });

  module.def("flush", [] {
    Status status;
    {
      const nb::gil_scoped_release release;
      status = flush();
    }
    raise_unless_ok(status);
  });
  module.def("set_proof_level", &set_level, nb::arg("level"));
  module.def("proof_level",
             [] { return std::string(kLevels[static_cast<std::size_t>(proof_level())]); });
  module.def("set_proof_sink", &set_sink, nb::arg("sink").none());
  module.def("counters_json", [] {
    const nb::gil_scoped_release release;
    return counters_json();
  });
  module.def("reset_counters", &reset_counters, nb::call_guard<nb::gil_scoped_release>());
  module.def("info_json", &info_json, nb::call_guard<nb::gil_scoped_release>());
  module.def("version", &version);
  module.def("library_path", &library_path);
  module.def("run_self_checks", [] {
    Status status;
    {
      const nb::gil_scoped_release release;
      status = run_self_checks();
    }
    raise_unless_ok(status);
  });
  module.def("release_cached_memory", &release_cached_memory,
             nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace fovea::python
