// Python's arguments of a call as ForwardArgs and BackwardArgs.
#pragma once

#include "arrays.h"
#include "config.h"

namespace fovea::python {

/// ForwardArgs, and what keeps their memory alive. An operand is an array, or a list of 1 to 4 of
/// them: its segments. `extras` has the optional tensors by name, or is None; the norm weights
/// (q_norm, k_norm) are lists beside the segments.
class ForwardCall {
 public:
  ForwardCall(const Config& config, nb::handle q, nb::handle k, nb::handle v, nb::handle out,
              nb::handle lse, nb::handle extras, void* stream);
  [[nodiscard]] const ForwardArgs& args() const { return args_; }

 private:
  Arrays arrays_;
  ForwardArgs args_;
};

/// BackwardArgs, likewise. Gradients that are not wanted are None; `extras` may also have dlse,
/// dmask, dsinks, and dq_norm, dk_norm beside the segments of dq and dk.
class BackwardCall {
 public:
  BackwardCall(const Config& config, nb::handle q, nb::handle k, nb::handle v, nb::handle out,
               nb::handle lse, nb::handle dout, nb::handle dq, nb::handle dk, nb::handle dv,
               nb::handle extras, void* stream);
  [[nodiscard]] const BackwardArgs& args() const { return args_; }

 private:
  Arrays arrays_;
  BackwardArgs args_;
};

}  // namespace fovea::python
