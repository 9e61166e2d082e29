"""enable() and disable(): whether scaled_dot_product_attention comes to Fovea."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from .. import _native
from .._config import Settings
from .._reports import info, version
from ._counts import counts
from ._sdpa import SDPA, Router

_lock = threading.RLock()
_active: _Route | None = None

_DEVICES = ("CPU", "CUDA")


class _Route:
    """The registrations of one router. Both families of keys are taken: registering for a device
    alone would leave its autograd key without a kernel."""

    def __init__(self, options: dict[str, Any], router: Router) -> None:
        self.options = options
        self._library = torch.library.Library("aten", "IMPL")
        self._tag = ""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that kernels are replaced is what was asked for
            for device in _DEVICES:
                for name, function in (
                    (device, router.eager),
                    (f"Autograd{device}", router.eager),
                    (f"Autocast{device}", router.autocast),
                ):
                    self._library.impl("scaled_dot_product_attention", function, name)
        for key in _traced_keys():
            SDPA.py_impl(key)(router.traced)
        self._change_graphs(f"fovea-{version()}-{_text_of(options)}")

    def undo(self) -> None:
        for key in _traced_keys():
            SDPA.py_kernels.pop(key, None)
        self._library._destroy()
        SDPA._dispatch_cache.clear()
        self._change_graphs("")

    def _change_graphs(self, tag: str) -> None:
        """Graphs that were made before must not run the old choice: those of this process are
        dropped, and those in caches on disk have another key."""
        config = torch.compiler.config
        if self._tag and config.cache_key_tag.endswith(self._tag):
            config.cache_key_tag = config.cache_key_tag[: -len(self._tag)]
        config.cache_key_tag += tag
        self._tag = tag
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()


def _text_of(options: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value!r}" for name, value in sorted(options.items()) if name != "job")


def _traced_keys() -> list[torch._C.DispatchKey]:
    return [
        getattr(torch._C.DispatchKey, prefix + device)
        for device in _DEVICES
        for prefix in ("", "Autograd")
    ]


def enable(
    *,
    strict: bool = False,
    job: _native.Job | None = None,
    provider: str | None = None,
    priorities: Mapping[str, int] | None = None,
    **options: Any,
) -> None:
    """Routes torch.nn.functional.scaled_dot_product_attention to Fovea, for CPU tensors and, where
    the build has CUDA kernels, for CUDA tensors. Gradients, autocast and torch.compile included.

    Calls that Fovea does not serve stay PyTorch's and are counted (`stats`); `strict` makes them
    errors instead, naming the reason. `options` are those of `attention` that are no tensors:
    kernel, backend, deterministic, autotune, num_threads, tf32. Enabling again replaces the
    options. Graphs that torch.compile made before are made anew.

    With `provider` or `priorities` the calls go through the chain of `fovea.providers` instead.
    """
    global _active
    settings = Settings(**options)
    chain = _chain_of(provider, priorities, strict)
    devices = frozenset(d["type"] for d in info()["devices"])
    router = Router(strict, settings, job, devices, chain)
    given = {
        "strict": strict,
        "job": job,
        "provider": provider,
        "priorities": priorities,
        **options,
    }
    with _lock:
        disable()
        _active = _Route(given, router)


def _chain_of(
    provider: str | None, priorities: Mapping[str, int] | None, strict: bool
) -> Callable[..., Any] | None:
    if provider is None and priorities is None:
        return None
    from .. import providers  # which imports every package it knows

    providers.apply(provider, priorities=priorities, strict=strict)
    return partial(providers.attention, provider=provider, priorities=priorities)


def disable() -> None:
    """Gives scaled_dot_product_attention back to PyTorch. Nothing to do when it is there."""
    global _active
    with _lock:
        if _active is not None:
            _active.undo()
            _active = None


def is_enabled() -> bool:
    """Whether scaled_dot_product_attention comes to Fovea."""
    return _active is not None


@contextmanager
def enabled(**options: Any) -> Iterator[None]:
    """enable(**options) within a `with` block; afterwards what was before."""
    with _lock:
        before = None if _active is None else _active.options
    enable(**options)
    try:
        yield
    finally:
        disable()
        if before is not None:
            enable(**before)


def stats() -> dict[str, Any]:
    """Calls of scaled_dot_product_attention while it was enabled: all, those left to PyTorch, and
    these by reason."""
    return {
        "calls": counts.named("total"),
        "delegated": counts.named("pytorch_fallback"),
        "reasons": counts.delegated(),
        "masks_skipped": counts.named("mask_all_true_skipped"),
    }


def reset_stats() -> None:
    """Sets these counters to zero."""
    counts.reset()
