// What cuda.sm90.forward and cuda.sm90.backward refuse alike, and how they hand operands over.
#pragma once

#include <initializer_list>
#include <optional>

#include "contract/kernel.h"
#include "cuda/sm90_maps.h"

namespace fovea::cuda {

/// Whether the device is there and has these instructions.
Refusal available_hopper(const Device& device);

/// Whether a block may have so much shared memory. A device that is not there is not asked.
bool fits_hopper(const Device& device, std::size_t shared_bytes);

/// What the call has beyond 16 bits, 128 columns, bands, lengths and sinks.
Refusal refuse_beyond_hopper(const Problem& p);

/// Whether the copy engine can read all of these.
Refusal refuse_beyond_copies(std::initializer_list<const std::optional<MapOf>*> maps);

Status encode_input(const char* kernel, const char* name, TensorMap& to, MapSteps& steps,
                    const std::optional<MapOf>& from);

}  // namespace fovea::cuda
