// Tensors named on a command line: "q.npy" or "model.safetensors:layers.0.q".
#pragma once

#include <string>
#include <vector>

#include <fovea/status.h>

#include "io/array.h"

namespace fovea::io {

/// Where a tensor is stored. `name` is empty for .npy.
struct TensorPlace {
  std::string path, name;
};

/// Splits "path.safetensors:name"; anything else must end in .npy. A safetensors file without a
/// name is accepted only by load_tensor, and only where the file holds one tensor.
Result<TensorPlace> parse_place(const std::string& text);

Result<Array> load_tensor(const std::string& text);

/// A result to be stored: row-major, dense.
struct TensorResult {
  TensorPlace place;
  const Array* array = nullptr;
};

/// What would lose an output or an input: a place named twice, in whatever spelling; an output to a
/// file that is read; a safetensors file without a tensor name.
Status check_places(const std::vector<TensorPlace>& outputs,
                    const std::vector<TensorPlace>& inputs);

/// A dtype that .npy lacks.
Status check_types(const std::vector<TensorResult>& results);

/// Writes every file under a temporary name; renames them when all are written. Tensors of one
/// safetensors file are written together.
Status store_tensors(const std::vector<TensorResult>& results);

}  // namespace fovea::io
