// Everything a case's call writes, poisoned, and the arguments that name it.
#pragma once

#include <string>
#include <vector>

#include <fovea/attention.h>

#include "cases/inputs.h"

namespace fovea::cases {

struct Output {
  std::string name;  ///< "out", "dq", "dk[1]", "dk weight[0]", ...
  Tensor tensor;
  MutableTensorView written;  ///< what the call has to write; rows that nobody owns are left out
};

struct Outputs {
  std::vector<Output> list;
  [[nodiscard]] const Output* find(const std::string& name) const;
  /// Empty, or what was written that should not have been.
  [[nodiscard]] std::string stray_writes() const;
  /// Of everything that was to be written.
  [[nodiscard]] std::uint64_t hash() const;
};

/// In what dtypes results are asked for.
enum class Width {
  as_asked,  ///< the case's own
  widest,    ///< the oracle's: f32, or f64 where the compute dtype is f64; lse always in f64
};

Outputs make_forward_outputs(const Inputs& inputs, Width width);
ForwardArgs forward_args(const Inputs& inputs, const Outputs& outputs);

/// Forward's results as backward reads them.
struct Saved {
  std::vector<Tensor> out;
  Tensor lse;
};
Outputs make_backward_outputs(const Inputs& inputs, Width width);
BackwardArgs backward_args(const Inputs& inputs, const Saved& saved, const Outputs& outputs);

}  // namespace fovea::cases
