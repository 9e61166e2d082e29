// Config: all of a call but its tensors. Made once and used for many calls.
#pragma once

#include <nanobind/nanobind.h>

#include <fovea/plan.h>

namespace fovea::python {

struct Config {
  AttentionParams params;  ///< without tensors
  PlanOptions plan;
};

void bind_config(nanobind::module_& module);

}  // namespace fovea::python
