"""A call made through the providers: the first that serves, then the next where one fails."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import torch
from torch import Tensor

from .. import _native
from ..torch._autocast import autocast_dtype
from ..torch._call import NAMES
from ._entry import Entry, Found, Request, find

_STICKY = ("CUDA error:", "illegal memory access", "device-side assert", "unspecified launch")


class Registry:
    """The providers of a process. Looking for them imports them, once."""

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        self._lock = threading.Lock()
        self._entries = {entry.name: entry for entry in entries}
        self._found: dict[str, Found] = {}

    def add(self, entry: Entry) -> None:
        """Adds a provider, or replaces the one of that name."""
        with self._lock:
            self._entries[entry.name] = entry
            self._found.pop(entry.name, None)

    def remove(self, name: str) -> None:
        with self._lock:
            del self._entries[name]
            self._found.pop(name, None)

    def all(self) -> list[Found]:
        """Every provider, by priority."""
        with self._lock:
            for name, entry in self._entries.items():
                if name not in self._found:
                    self._found[name] = find(entry)
            found = list(self._found.values())
        return sorted(found, key=lambda f: (-f.entry.priority, f.entry.name))

    def forget(self) -> None:
        """Looks again at the next use."""
        with self._lock:
            self._found.clear()


def candidates(
    found: list[Found], request: Request | None, priorities: Mapping[str, int]
) -> list[_native.Provider]:
    """The providers as the library ranks them; without a request, for any call."""
    listed = []
    for f in found:
        refusal = f.reason if f.loaded is None else ""
        if f.loaded is not None and request is not None:
            refusal = _refusal(f, request)
        listed.append(
            _native.Provider(
                f.entry.name,
                priorities.get(f.entry.name, f.entry.priority),
                f.entry.explicit_only,
                refusal,
                f.loaded.version if f.loaded else "",
                f.loaded.file if f.loaded else "",
            )
        )
    unknown = set(priorities) - {f.entry.name for f in found}
    if unknown:
        raise ValueError(
            f"[fovea] priorities: no provider is called {', '.join(sorted(unknown))}; known: "
            f"{', '.join(f.entry.name for f in found)}"
        )
    return listed


def _refusal(found: Found, request: Request) -> str:
    device = request.q.device.type
    if device not in found.entry.devices:
        return f"it needs {' or '.join(found.entry.devices)} tensors; got {device}"
    return found.entry.refuse(request) or ""


def request_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    job: _native.Job | None,
) -> Request:
    """A request in one dtype: the cast of autocast comes first, then the check. The casts are
    differentiable, so that gradients come back in each input's own dtype."""
    for name, tensor in (("query", q), ("key", k), ("value", v)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"[fovea] {name}: a tensor; got {type(tensor).__name__}")
        if tensor.device != q.device:
            raise ValueError(f"[fovea] {name}: on {tensor.device}, but query is on {q.device}")
    cast = autocast_dtype((q, k, v))
    if cast is not None:
        q, k, v = (t.to(cast) for t in (q, k, v))
    if not q.dtype == k.dtype == v.dtype:
        names = ", ".join(
            f"{n}={NAMES.get(t.dtype, t.dtype)}" for n, t in (("q", q), ("k", k), ("v", v))
        )
        raise ValueError(
            f"[forward] mixed dtypes need an explicit cast (autocast, or cast=...); got {names}"
        )
    needs = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (q, k, v, mask)
    )
    return Request(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa, needs, job)


def run_chain(
    registry: Registry,
    request: Request,
    provider: str,
    priorities: Mapping[str, int],
    strict: bool,
) -> Tensor:
    """The result of the first provider that serves. A provider that raises is reported with its
    exception and the name of the one that served instead; in strict mode, and for errors after
    which the device is unusable, it is raised."""
    found = {f.entry.name: f for f in registry.all()}
    listed = {c.name: c for c in candidates(list(found.values()), request, priorities)}
    order, _ = _native.rank_providers(list(listed.values()), provider, strict)
    failures: list[tuple[_native.Provider, str]] = []
    for name in order:
        loaded = found[name].loaded
        assert loaded is not None  # who is not loaded has a refusal, and is not in the order
        try:
            out = found[name].entry.run(loaded, request)
        except Exception as error:
            failures.append((listed[name], f"{type(error).__name__}: {error}"))
            if strict or _is_sticky(error) or name == order[-1]:
                _report(failures, "", request.job)
                raise
            continue
        _report(failures, name, request.job)
        if name != "fovea":  # whose kernels prove themselves
            finished.after(listed[name], request)
        return out
    raise AssertionError("a ranking without anybody")


def _is_sticky(error: Exception) -> bool:
    """Whether the device is unusable from here on: no other provider would do better."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    return any(text in str(error) for text in _STICKY)


def _report(failures, served_by: str, job: _native.Job | None) -> None:
    for provider, reason in failures:
        _native.provider_failed(provider, reason, served_by, job)


class Finished:
    """Reports runs when they have finished: at once on the CPU; on a GPU when an event behind them
    has passed, which later calls and `flush` look at and nobody waits for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outstanding: list[tuple] = []

    def after(self, provider: _native.Provider, request: Request) -> None:
        if request.q.is_cuda:
            if torch.cuda.is_current_stream_capturing():
                return  # recorded, not run
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(request.q.device))
            with self._lock:
                self._outstanding.append((event, provider, request.describe(), request.job))
            self.look()
            return
        _native.provider_ran(provider, request.describe(), request.job)

    def look(self) -> None:
        """Reports what has finished by now."""
        with self._lock:
            waiting, self._outstanding = self._outstanding, []
        for item in waiting:
            event, provider, description, job = item
            if event.query():
                _native.provider_ran(provider, description, job)
            else:
                with self._lock:
                    self._outstanding.append(item)


finished = Finished()
