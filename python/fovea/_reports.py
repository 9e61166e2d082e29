"""What is there, what ran, and what was counted."""

from __future__ import annotations

import atexit
import json
from collections.abc import Callable
from typing import Any

from . import _native


def version() -> str:
    """The library's version."""
    return _native.version()


def library_path() -> str:
    """The file that holds the library's code."""
    return _native.library_path()


def info() -> dict[str, Any]:
    """Devices, kernels (with the reason why one is not available), absent backends, measured
    choices, version and file of the library."""
    return json.loads(_native.info_json())


def stats() -> dict[str, Any]:
    """The process-wide counters: calls, kernels, fallbacks, refusals by reason."""
    return json.loads(_native.counters_json())


def reset_stats() -> None:
    """Sets the counters to zero."""
    _native.reset_counters()


def job(name: str) -> _native.Job:
    """A unit of work for which each kernel is proved once: `attention(..., job=job)`."""
    return _native.Job(name)


def flush() -> None:
    """Counts and proves the runs that have finished by now; raises the first failure among them."""
    _native.flush()


def proof_level() -> str:
    """ "off", "proof" or "all"."""
    return _native.proof_level()


def set_proof_level(level: str) -> None:
    """ "off" (the default: nothing is printed), "proof": a line for each job and kernel, "all": a
    line for each call. FOVEA_PROOF sets it too."""
    _native.set_proof_level(level)


def set_proof_sink(sink: Callable[[str], object] | None) -> None:
    """Who receives the lines of proof; None: stderr."""
    _native.set_proof_sink(sink)


def release_cached_memory() -> None:
    """Frees workspaces and plans that are kept for reuse."""
    _native.release_cached_memory()


# The library outlives the interpreter; a sink does not.
atexit.register(set_proof_sink, None)
