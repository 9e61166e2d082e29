#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <fovea/providers.h>

#include "calls.h"
#include "errors.h"

namespace nb = nanobind;

namespace fovea::python {

void bind_providers(nb::module_& module) {
  nb::class_<Provider>(module, "Provider", "A candidate of others; include/fovea/providers.h.")
      .def(
          "__init__",
          [](Provider* self, std::string name, int priority, bool explicit_only,
             std::string refusal, std::string version, std::string file) {
            new (self) Provider{std::move(name),    priority,           explicit_only,
                                std::move(refusal), std::move(version), std::move(file)};
          },
          nb::arg("name"), nb::arg("priority"), nb::arg("explicit_only") = false,
          nb::arg("refusal") = "", nb::arg("version") = "", nb::arg("file") = "")
      .def_ro("name", &Provider::name)
      .def_ro("priority", &Provider::priority)
      .def_ro("explicit_only", &Provider::explicit_only)
      .def_ro("refusal", &Provider::refusal)
      .def_ro("version", &Provider::version)
      .def_ro("file", &Provider::file);

  module.def(
      "rank_providers",
      [](const std::vector<Provider>& candidates, const std::string& chosen, bool strict) {
        Choice choice;
        choice.kernel = chosen;
        choice.strict = strict;
        const Ranking ranking = value_of(rank_providers(candidates, choice));
        std::vector<std::pair<std::string, std::string>> passed_over;
        for (const PassedOver& p : ranking.passed_over)
          passed_over.emplace_back(p.kernel, p.reason);
        return std::pair(ranking.order, passed_over);
      },
      nb::arg("candidates"), nb::arg("chosen") = "", nb::arg("strict") = false);
  // The sink of the lines may be a Python function.
  module.def(
      "provider_ran",
      [](const Provider& provider, const std::string& description, Job* job) {
        const nb::gil_scoped_release release;
        provider_ran(provider, description, job);
      },
      nb::arg("provider"), nb::arg("description"), nb::arg("job").none() = nb::none());
  module.def(
      "provider_failed",
      [](const Provider& provider, const std::string& reason, const std::string& served_by,
         Job* job) {
        const nb::gil_scoped_release release;
        provider_failed(provider, reason, served_by, job);
      },
      nb::arg("provider"), nb::arg("reason"), nb::arg("served_by") = "",
      nb::arg("job").none() = nb::none());
}

}  // namespace fovea::python
