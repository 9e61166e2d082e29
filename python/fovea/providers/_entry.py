"""What is known of one provider of attention, and how it is looked for."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .. import _native


@dataclass(frozen=True)
class Request:
    """A call of scaled_dot_product_attention whose operands have one dtype. [batch, heads, length,
    head_dim], as in PyTorch."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False
    needs_gradient: bool = False
    job: _native.Job | None = None

    def other_ranks(self) -> str | None:
        """A refusal for packages that read four dimensions."""
        ranks = [t.dim() for t in (self.q, self.k, self.v)]
        return None if ranks == [4, 4, 4] else f"operands of {ranks} dimensions, not 4"

    def describe(self) -> str:
        """What proof lines say of it."""
        dtype = str(self.q.dtype).removeprefix("torch.")
        return f"d{self.q.shape[-1]} {dtype} device={self.q.device}"


@dataclass(frozen=True)
class Loaded:
    """A provider that could be imported."""

    function: Callable[..., Any]
    version: str
    file: str


@dataclass(frozen=True)
class Entry:
    """A provider. `load` imports it and nothing else; `refuse` says why a call is not its, or
    None; `run` computes a call that it does not refuse."""

    name: str
    label: str
    priority: int
    load: Callable[[], Loaded]
    refuse: Callable[[Request], str | None]
    run: Callable[[Loaded, Request], Tensor]
    explicit_only: bool = False
    devices: tuple[str, ...] = ("cpu", "cuda")


@dataclass
class Found:
    """What looking for a provider gave: it, or the reason why it is not available."""

    entry: Entry
    loaded: Loaded | None = None
    reason: str = ""

    @property
    def available(self) -> bool:
        return self.loaded is not None

    def line(self) -> str:
        """Name and version, or the reason, in one line."""
        if self.loaded is None:
            return f"{self.entry.label}: not available: {self.reason}"
        return f"{self.entry.label} {self.loaded.version}"


def find(entry: Entry) -> Found:
    """Imports a provider; whatever goes wrong with it becomes its reason. (A broken library raises
    ImportError, OSError, or what its own code happens to.)"""
    try:
        return Found(entry, entry.load())
    except Exception as error:
        return Found(entry, None, f"{type(error).__name__}: {error}")


def load_from(
    module: str, function: str, *, distribution: str, binary: tuple[str, ...] = ()
) -> Loaded:
    """A function of an installed package, with the version and the file of what was loaded: its
    compiled module where one of `binary` is loaded."""
    imported = importlib.import_module(module)
    found = getattr(imported, function)
    for name in binary:
        if file := getattr(sys.modules.get(name), "__file__", None):
            return Loaded(found, _version(imported, module, distribution), file)
    file = getattr(imported, "__file__", None) or "built in"
    return Loaded(found, _version(imported, module, distribution), file)


def _version(imported: Any, module: str, distribution: str) -> str:
    package = sys.modules.get(module.partition(".")[0], imported)
    for holder in (imported, package):
        if isinstance(version := getattr(holder, "__version__", None), str):
            return version
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
