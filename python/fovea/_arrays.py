"""attention() for arrays of every library that speaks DLPack."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from . import _native
from ._band import Band, band_of
from ._config import Settings, native

Array = Any  # whatever exports DLPack

_DTYPES = ("float32", "float16", "bfloat16", "float64")
_SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"}
_WRITABLE = ("numpy", "cupy")  # libraries whose arrays can be written where they lie


def library_of(array: Array, argument: str) -> str:
    """The library that an array belongs to: the first part of its type's module."""
    name = type(array).__module__.partition(".")[0]
    name = "jax" if name == "jaxlib" else name
    if not hasattr(array, "__dlpack__"):
        raise TypeError(f"[fovea] {argument}: expected an array, got {type(array).__name__}")
    return name


def dtype_name(array: Array, argument: str) -> str:
    """ "float32" and the like, of an array of any library."""
    name = str(array.dtype).rpartition(".")[2]
    if name not in _DTYPES:
        raise TypeError(
            f"[fovea] {argument}: dtype must be one of {', '.join(_DTYPES)}; got {name}"
        )
    return name


def check_operands(q: Array, k: Array, v: Array) -> None:
    """Whether three operands are such as the library is asked for; it checks their sizes."""
    for argument, array in (("q", q), ("k", k), ("v", v)):
        library_of(array, argument)
        dtype_name(array, argument)
        if array.ndim != 4:
            raise ValueError(
                f"[fovea] {argument}: 4 dimensions [batch, heads, length, head_dim]; got shape "
                f"{tuple(array.shape)}"
            )


def _device_of(array: Array) -> tuple[str, int]:
    kind, index = array.__dlpack_device__()
    return ("cuda" if int(kind) in (2, 13) else "cpu"), int(index)


class _Results:
    """New arrays in the library of `like`: written in place where they can be, else handed over."""

    def __init__(self, like: Array) -> None:
        self._name = library_of(like, "q")
        self._module = importlib.import_module("jax.dlpack" if self._name == "jax" else self._name)
        self._device = _device_of(like)

    def empty(self, shape: Sequence[int], dtype: str) -> Array:
        """Memory for a result."""
        if self._name in _WRITABLE:
            return self._module.empty(shape, dtype=dtype)
        return _native.new_array(list(shape), _SHORT[dtype], *self._device)

    def finished(self, array: Array) -> Array:
        """The result as an array of the library."""
        return array if self._name in _WRITABLE else self._module.from_dlpack(array)


def _is_torch(array: Array) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _extras(**tensors: Array | None) -> dict[str, Array] | None:
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    return given or None


def _refuse_gradients(*arrays: Array) -> None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled():
        return
    if any(isinstance(x, torch.Tensor) and x.requires_grad for x in arrays):
        raise NotImplementedError(
            "[fovea] this call has no gradient: detach() its tensors, or use fovea.torch.attention"
        )


def _stream_of(array: Array, stream: int | None) -> int:
    """The stream a call is queued on: the caller's, else the current one of PyTorch or CuPy, else the
    default."""
    if stream is not None:
        return stream
    if _is_torch(array):
        return 0 if array.is_cpu else sys.modules["torch"].cuda.current_stream(array.device).cuda_stream
    if library_of(array, "q") == "cupy":
        return sys.modules["cupy"].cuda.get_current_stream().ptr
    return 0


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None = None,
    is_causal: bool = False,
    band: Band | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    alibi: Array | None = None,
    sinks: Array | None = None,
    seqused_k: Array | None = None,
    return_lse: bool = False,
    out: Array | None = None,
    stream: int | None = None,
    job: _native.Job | None = None,
    **options: Any,
) -> Array:
    """softmax(scale * q k^T + mask) v for q [batch, q_heads, q_len, head_dim], k [batch, kv_heads,
    kv_len, head_dim], v [batch, kv_heads, kv_len, v_head_dim]; q_heads a multiple of kv_heads.

    Arrays may be of any library that speaks DLPack, with any strides; PyTorch's tensors go to
    `fovea.torch.attention`, which has gradients. The result is an array of q's library.

    mask: bool (true = attend) or additive, broadcastable to [batch, q_heads, q_len, kv_len].
    is_causal: as in PyTorch, anchored at the top left; `band` says everything else.
    sinks [q_heads]; alibi: slopes [q_heads] or [batch, q_heads]; seqused_k [batch] integers.
    return_lse: also log-sum-exp [batch, q_heads, q_len], f32.
    out: an array for the result, of libraries whose arrays can be written.
    stream: address of a CUDA stream; by default CuPy's current one, else the default stream.
    options: fields of `fovea._config.Settings`: cast="bf16", kernel="cpu.avx2", strict=True,
        deterministic=True, autotune=True, num_threads=4, tf32=True.
    """
    if _is_torch(q):
        from . import torch as fovea_torch

        return fovea_torch.attention(
            q,
            k,
            v,
            mask=mask,
            is_causal=is_causal,
            band=band,
            scale=scale,
            softcap=softcap,
            alibi=alibi,
            sinks=sinks,
            seqused_k=seqused_k,
            return_lse=return_lse,
            job=job,
            **_refuse_out(out, stream),
            **options,
        )
    check_operands(q, k, v)
    settings = _settings(is_causal, band, scale, softcap, options)
    results = _Results(q)
    written = results.empty(_out_shape(q, v), _out_dtype(q, settings)) if out is None else out
    lse = results.empty(tuple(q.shape[:3]), "float32") if return_lse else None
    extras = _extras(mask=mask, alibi=alibi, sinks=sinks, seqused_k=seqused_k)
    _native.forward(
        native(settings), q, k, v, written, lse, extras, _stream_of(q, stream), job, None, False
    )
    result = results.finished(written) if out is None else out
    return (result, results.finished(lse)) if return_lse else result


def _refuse_out(out: Array | None, stream: int | None) -> dict[str, Any]:
    for name, value in (("out", out), ("stream", stream)):
        if value is not None:
            raise TypeError(f"[fovea] {name}: PyTorch's tensors take none; got {value!r}")
    return {}


def _settings(
    is_causal: bool,
    band: Band | None,
    scale: float | None,
    softcap: float,
    options: dict[str, Any],
) -> Settings:
    try:
        return Settings(scale=scale, band=band_of(is_causal, band), softcap=softcap, **options)
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        known = ", ".join(Settings.__dataclass_fields__)
        raise TypeError(
            f"[fovea] options: unknown one among {', '.join(options)}; known: {known}"
        ) from None


def _out_shape(q: Array, v: Array) -> tuple[int, ...]:
    return (*q.shape[:3], v.shape[3])


def _out_dtype(q: Array, settings: Settings) -> str:
    for long, short in _SHORT.items():
        if settings.cast == short:
            return long
    return dtype_name(q, "q")


class AttentionPlan:
    """A call that was validated and whose kernel was chosen once, to be run often on arrays of the
    same shapes, strides and dtypes. Made by `fovea.plan`."""

    def __init__(
        self,
        settings: Settings,
        q: Array,
        k: Array,
        v: Array,
        out: Array,
        extras: dict[str, Array] | None,
    ) -> None:
        self._plan = _native.Plan.forward(native(settings), q, k, v, out, None, extras)

    @property
    def report(self) -> _native.Report:
        """The kernel, and the kernels that were passed over with the reasons."""
        return self._plan.report

    @property
    def kernel(self) -> str:
        """The chosen kernel's id."""
        return self._plan.report.kernel

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory beyond inputs and outputs."""
        return self._plan.workspace_bytes

    def run(
        self,
        q: Array,
        k: Array,
        v: Array,
        out: Array,
        *,
        mask: Array | None = None,
        sinks: Array | None = None,
        stream: int | None = None,
        job: _native.Job | None = None,
    ) -> Array:
        """Writes the result into `out` and returns it."""
        _refuse_gradients(q, k, v)
        extras = _extras(mask=mask, sinks=sinks)
        self._plan.run_forward(q, k, v, out, None, extras, _stream_of(q, stream), job)
        return out


def plan(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    *,
    mask: Array | None = None,
    sinks: Array | None = None,
    is_causal: bool = False,
    band: Band | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    **options: Any,
) -> AttentionPlan:
    """Plans `attention(q, k, v, ...)` into `out`; the arguments are those of `attention`."""
    settings = _settings(is_causal, band, scale, softcap, options)
    return AttentionPlan(settings, q, k, v, out, _extras(mask=mask, sinks=sinks))


def merge_partials(
    outs: Sequence[Array],
    lses: Sequence[Array],
    *,
    sinks: Array | None = None,
    stream: int | None = None,
) -> tuple[Array, Array]:
    """Merges results over disjoint sets of keys, each computed without the sink, to (out, lse).
    Two empty ones merge to (0, -inf); the sink is added here, once."""
    if not outs:
        raise ValueError("[fovea] outs: at least one partial result; got none")
    _refuse_gradients(*outs, *lses)
    results = _Results(outs[0])
    out = results.empty(tuple(outs[0].shape), dtype_name(outs[0], "outs"))
    lse = results.empty(tuple(lses[0].shape), "float32")
    _native.merge_partials(list(outs), list(lses), sinks, out, lse, _stream_of(outs[0], stream))
    return results.finished(out), results.finished(lse)
