// How much arithmetic a case takes.
#pragma once

#include "cases/case.h"
#include "cases/run_case.h"

namespace fovea::cases {

/// Pairs (query, key) that band and lengths leave visible, over all sequences and heads. Masks do
/// not count: whether they save work is the kernel's affair.
double visible_pairs(const Case& c);

/// Floating-point operations: 2 (head_dim + v_head_dim) a visible pair forward, 2.5 times that
/// backward (five products instead of two).
double flops_of(const Case& c, Direction direction);
/// Forward's work where tiles are computed whole: what an emulated device has to do.
double tiled_flops_of(const Case& c);

/// Bytes of q, k and v that somebody sees by band and lengths (and of out and dout backward): what
/// has to be read at least, masks aside.
double read_bytes_of(const Case& c, Direction direction);

}  // namespace fovea::cases
