// fovea._native: the C++ API for Python. Everything that is pleasant to call stands in fovea/.
#include <nanobind/nanobind.h>

#include "calls.h"
#include "config.h"

NB_MODULE(_native, module) {
  module.doc() = "The C++ API of Fovea; an implementation detail of the package.";
  // Module globals, and caches of configurations among them, live until the process ends.
  nanobind::set_leak_warnings(false);
  fovea::python::bind_config(module);
  fovea::python::bind_reports(module);
  fovea::python::bind_calls(module);
  fovea::python::bind_providers(module);
}
