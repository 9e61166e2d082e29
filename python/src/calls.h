// Calls, plans, jobs and reports as Python sees them.
#pragma once

#include <nanobind/nanobind.h>

namespace fovea::python {

void bind_calls(nanobind::module_& module);
void bind_providers(nanobind::module_& module);
void bind_reports(nanobind::module_& module);

}  // namespace fovea::python
