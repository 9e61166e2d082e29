// Checks of where views lie in memory: representable extents, pointers, overlap.
#pragma once

#include <string>

#include <fovea/status.h>
#include <fovea/tensor.h>

#include "contract/problem.h"

namespace fovea {

/// rank in [min_rank, max_rank], non-negative sizes, and all offsets within 63 bits.
Status check_layout(const std::string& where, const char* name, const TensorView& view,
                    int min_rank, int max_rank);

/// Not null unless empty, and aligned to its dtype.
Status check_pointer(const std::string& where, const char* name, const TensorView& view);

/// Whether two views share a byte. Exact, but for adversarial strides, where it gives up and says
/// no.
bool overlap(const TensorView& a, const TensorView& b);

/// Whether no element of the view is reached by two index tuples, judged by nested strides.
bool writes_each_element_once(const TensorView& view);

/// check_pointer of every view, and that no output overlaps an input or another output.
Status check_memory(const std::string& where, const Problem& problem);

/// "[2, 8, 128, 64]"
std::string shape_text(const TensorView& view);

}  // namespace fovea
