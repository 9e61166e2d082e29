"""What is installed, what would serve a call, and why, in words."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Iterator
from typing import Any

from . import _native, info
from ._band import Band
from ._config import Settings, native


def report(
    shape: tuple[int, int, int, int], dtype: str, device: str, causal: bool
) -> Iterator[str]:
    """The lines of the report, for a call of self-attention."""
    found = info()
    yield f"fovea {found['version']}, Python {platform.python_version()}, {found['library']}"
    for d in found["devices"]:
        yield f"Device {d['type']}:{d['index']}: {d['name']}, {d['capabilities']}"
    for absent in found["absent_backends"]:
        yield f"No {absent['backend']}: {absent['reason']}."
    size = "x".join(str(n) for n in shape)
    yield ""
    yield f"A call of shape {size} in {dtype} on {device}{', causal' if causal else ''}:"
    if importlib.util.find_spec("torch") is None:
        yield "  PyTorch is not installed; arrays of NumPy, CuPy and JAX are served."
        if dtype == "bf16" or device != "cpu":
            yield "  NumPy has neither bf16 nor other devices; nothing more to say of this call."
            return
        yield from _kernel_lines(_numpy_arrays(shape, dtype), causal)
        return
    yield from _torch_lines(shape, dtype, device, causal)


def _numpy_arrays(shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
    import numpy

    array = numpy.empty(shape, {"f32": "float32", "f16": "float16"}[dtype])
    return array, numpy.empty_like(array)


def _kernel_lines(arrays: tuple[Any, Any], causal: bool) -> Iterator[str]:
    """Which of Fovea's kernels would serve."""
    x, out = arrays
    settings = Settings(band=Band.causal("top_left") if causal else None)
    served = ""
    for kernel, reason in _native.why_not(native(settings), x, x, x, out):
        if not reason and not served:
            served = kernel
            yield f"  {kernel} serves."
        elif not reason:
            yield f"  {kernel} could serve, after {served}."
        else:
            yield f"  {kernel} does not: {reason}."
    if not served:
        yield "  No kernel of Fovea serves it."


def _torch_lines(shape: tuple[int, ...], dtype: str, device: str, causal: bool) -> Iterator[str]:
    import torch

    from . import providers
    from .providers._chain import candidates, request_of
    from .torch._call import DTYPES

    yield f"  PyTorch {torch.__version__} from {torch.__file__}"
    try:
        x = torch.empty(shape, dtype=DTYPES[dtype], device=device)
    except (RuntimeError, AssertionError) as error:
        yield f"  There is no such tensor here: {error}"
        return
    yield from _kernel_lines((x, torch.empty_like(x)), causal)
    yield ""
    yield "Providers, by priority:"
    request = request_of(x, x, x, None, 0.0, causal, None, False, None)
    listed = candidates(providers.found(), request, {})
    order, _ = _native.rank_providers(listed)
    for f, candidate in zip(providers.found(), listed, strict=True):
        where = f" ({f.loaded.file})" if f.loaded else ""
        if candidate.refusal:
            state = f"not for this call: {candidate.refusal}" if f.available else ""
        elif candidate.explicit_only:
            state = "only when it is chosen by name"
        else:
            state = "would serve" if order[0] == candidate.name else "next in the chain"
        yield f"  {candidate.priority:4} {f.line()}{where}{': ' if state else ''}{state}"
