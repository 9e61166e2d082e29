"""Fovea: exact fused attention that proves which kernel really ran.

    import fovea
    out = fovea.attention(q, k, v, is_causal=True)      # NumPy, CuPy, JAX, PyTorch

For PyTorch, `fovea.torch` has operators with gradients, and `fovea.torch.enable()` routes
`torch.nn.functional.scaled_dot_product_attention` here. `python -m fovea doctor` says what this
machine has and what would serve a call. docs/python.md in the repository has recipes.
"""

from __future__ import annotations

from ._arrays import AttentionPlan, attention, merge_partials, plan
from ._band import Band
from ._native import Job, Report
from ._reports import (
    flush,
    info,
    job,
    library_path,
    proof_level,
    release_cached_memory,
    reset_stats,
    set_proof_level,
    set_proof_sink,
    stats,
    version,
)

__version__ = version()

__all__ = [
    "AttentionPlan",
    "Band",
    "Job",
    "Report",
    "attention",
    "flush",
    "info",
    "job",
    "library_path",
    "merge_partials",
    "plan",
    "proof_level",
    "release_cached_memory",
    "reset_stats",
    "set_proof_level",
    "set_proof_sink",
    "stats",
    "version",
]
