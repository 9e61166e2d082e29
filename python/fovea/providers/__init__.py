"""Attention of everybody who is installed: found without a flag, ranked, tried in turn, proved.

    from fovea import providers
    for line in providers.lines(): print(line)
    out = providers.attention(q, k, v)                          # the best that serves
    out = providers.attention(q, k, v, provider="xformers")     # an explicit choice

The library ranks: Fovea 120, FlashAttention 110 (3: 111, 4: 112), xFormers 100, PyTorch 80 and 70,
sub-quadratic 10. An explicit choice beats priority, and raises where it is not available. Importing
this module imports the packages that are looked for; a broken one is noted, with its reason.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from torch import Tensor

from .. import _native
from . import _external, _own
from ._chain import Registry, candidates, finished, request_of, run_chain
from ._entry import Entry, Found, Loaded, Request

__all__ = [
    "Entry",
    "Found",
    "Loaded",
    "Request",
    "apply",
    "attention",
    "available",
    "find_again",
    "flush",
    "found",
    "lines",
    "register",
    "unregister",
    "why",
]

_log = logging.getLogger("fovea.providers")
_registry = Registry(_own.ENTRIES + _external.ENTRIES)


def found() -> list[Found]:
    """Every provider that is known, by priority, available or not."""
    return _registry.all()


def available() -> list[str]:
    """Names of those that can be used, by priority."""
    return [f.entry.name for f in found() if f.available]


def lines() -> list[str]:
    """A line for each: name and version, or why it is not available."""
    return [f.line() for f in found()]


def why(name: str) -> str:
    """Why a provider is not available; empty when it is."""
    for f in found():
        if f.entry.name == name:
            return f.reason
    known = ", ".join(f.entry.name for f in found())
    raise ValueError(f"[fovea] name: no provider is called {name!r}; known: {known}")


def register(entry: Entry) -> None:
    """Adds a provider of your own, or replaces one."""
    _registry.add(entry)


def unregister(name: str) -> None:
    """Forgets a provider."""
    _registry.remove(name)


def find_again() -> None:
    """Looks for all of them again, at their next use."""
    _registry.forget()


def apply(
    name: str | None = None, *, priorities: Mapping[str, int] | None = None, strict: bool = False
) -> str:
    """The provider that calls go to first, by name or by priority. An explicit choice that is not
    available raises, with the reason. Logs "Applying attention optimization: <name>... done." to
    the logger fovea.providers."""
    listed = candidates(found(), None, priorities or {})
    order, _ = _native.rank_providers(listed, name or "", strict)
    _log.info("Applying attention optimization: %s... done.", order[0])
    return order[0]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    provider: str | None = None,
    priorities: Mapping[str, int] | None = None,
    strict: bool = False,
    job: _native.Job | None = None,
) -> Tensor:
    """scaled_dot_product_attention through the first provider that serves the call.

    provider: tried first, and an error where it cannot serve. priorities: other numbers by name.
    strict: nobody else is tried. Under autocast every provider gets the autocast dtype; mixed
    dtypes outside of it are an error that names the three.
    """
    request = request_of(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, job)
    return run_chain(_registry, request, provider or "", priorities or {}, strict)


def flush() -> None:
    """Reports the runs on GPUs that have finished by now."""
    finished.look()
    _native.flush()


found()
