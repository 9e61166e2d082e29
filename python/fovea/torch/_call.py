"""One call of the library on PyTorch's tensors: memory for results, stream, and the run itself.

Everything here takes operands as lists of segments; a plain tensor is a list of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from .. import _native
from .._config import Settings, native

DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

_deterministic = torch._C._get_deterministic_algorithms

# Extra tensors that have a gradient, and what the library calls it.
GRADIENTS = {"mask": "dmask", "sinks": "dsinks", "q_norm": "dq_norm", "k_norm": "dk_norm"}


@dataclass(frozen=True)
class Call:
    """What is computed: the settings, and the names of the extra tensors in the order in which they
    come. Norm weights of segment n are q_norm0, k_norm0 and so on."""

    settings: Settings
    names: tuple[str, ...] = ()

    @property
    def config(self) -> _native.Config:
        """What the library computes. As in PyTorch, use_deterministic_algorithms is asked at the
        time of each run, backward's too."""
        return self._repeatable if _deterministic() else self._config

    @cached_property
    def _config(self) -> _native.Config:
        return native(self.settings)

    @cached_property
    def _repeatable(self) -> _native.Config:
        return native(replace(self.settings, deterministic=True))

    @cached_property
    def cast(self) -> torch.dtype | None:
        name = self.settings.cast
        return None if name is None else DTYPES[name]

    @property
    def packed(self) -> bool:
        """Whether sequences are packed: q [total, heads, head_dim]."""
        return "cu_seqlens_q" in self.names

    def extras(self, tensors: Sequence[Tensor]) -> dict[str, Any] | None:
        """The extra tensors as the library takes them."""
        if not tensors:
            return None
        named: dict[str, Any] = {}
        for name, tensor in zip(self.names, tensors, strict=True):
            put(named, name, tensor)
        return named


@lru_cache(maxsize=1024)
def call_of(settings: Settings, names: tuple[str, ...] = ()) -> Call:
    """The one Call for these settings, so that what it caches is made once."""
    return Call(settings, names)


def put(named: dict[str, Any], name: str, tensor: Tensor | None) -> None:
    """Puts a tensor where the library looks for it: norm weights in lists beside the segments."""
    kind = name[:-1]
    if kind not in ("q_norm", "k_norm", "dq_norm", "dk_norm"):
        named[name] = tensor
        return
    weights = named.setdefault(kind, [])
    index = int(name[-1])
    weights.extend([None] * (index + 1 - len(weights)))
    weights[index] = tensor


def gradient_name(name: str) -> str | None:
    """What the gradient of an extra tensor is called; None: it has none."""
    if name[:-1] in ("q_norm", "k_norm"):
        return "d" + name
    return GRADIENTS.get(name)


def empty_like_layout(like: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """New dense memory in the order of `like`'s dimensions, so that [B, S, H, D] projections give
    [B, S, H, D] results. The same strides for real tensors and for fakes."""
    if like.is_contiguous():
        if like.dtype is dtype and like.shape == shape:
            return torch.empty_like(like)
        return torch.empty(shape, dtype=dtype, device=like.device)
    strides = like.stride()
    if any(strides[n] == 0 and like.shape[n] > 1 for n in range(len(strides))):
        return torch.empty(shape, dtype=dtype, device=like.device)  # expanded: no order to follow
    order = sorted(range(len(strides)), key=lambda n: -strides[n])
    return torch.empty_permuted(shape, order, dtype=dtype, device=like.device)


def empty_like_input(tensor: Tensor) -> Tensor:
    """New memory for an input's gradient: of its shape, dtype and order of dimensions."""
    if tensor.is_contiguous():
        return torch.empty_like(tensor)
    return empty_like_layout(tensor, tensor.shape, tensor.dtype)


def result_dtype(
    call: Call, q: Sequence[Tensor], k: Sequence[Tensor], v: Sequence[Tensor]
) -> torch.dtype:
    """The dtype of the result, or the error of inputs that differ."""
    if call.cast is not None:
        return call.cast
    dtype = q[0].dtype
    for tensor in (*q, *k, *v):
        if tensor.dtype is not dtype:
            found = ", ".join(
                f"{name}={NAMES.get(t[0].dtype, t[0].dtype)}"
                for name, t in (("q", q), ("k", k), ("v", v))
            )
            raise ValueError(
                f"[forward] mixed dtypes need an explicit cast (autocast, or cast=...); got {found}"
            )
    return dtype


def new_out(
    call: Call, q: Sequence[Tensor], k: Sequence[Tensor], v: Sequence[Tensor]
) -> list[Tensor]:
    """Memory for the result, a piece for each segment of q."""
    dtype = result_dtype(call, q, k, v)
    dim = v[0].shape[-1]
    return [
        empty_like_layout(s, s.shape if s.shape[-1] == dim else (*s.shape[:-1], dim), dtype)
        for s in q
    ]


def new_lse(call: Call, q: Sequence[Tensor]) -> Tensor:
    """Memory for log-sum-exp: [batch, q_heads, q_len], or [q_heads, total] of packed sequences."""
    first = q[0]
    shape: Sequence[int]
    if call.packed:
        shape = (first.shape[1], first.shape[0])
    elif len(q) == 1:
        shape = first.shape[:-1]
    else:
        batch, heads, length, _ = first.shape
        shape = (batch, heads, length + sum(s.shape[2] for s in q[1:]))
    return first.new_empty(shape, dtype=torch.float32)


def plain(operand: Sequence[Tensor | None]) -> object:
    """An operand as the library takes it."""
    return operand[0] if len(operand) == 1 else operand


def stream_of(tensor: Tensor) -> int:
    """Where the work is queued: PyTorch's current stream of the device. Never waited for."""
    if tensor.is_cpu:
        return 0
    return torch.cuda.current_stream(tensor.device).cuda_stream


def allocator_of(tensor: Tensor) -> Callable[[int], Tensor] | None:
    """On a GPU workspaces are PyTorch's memory: its allocator knows streams and graphs."""
    if tensor.is_cpu:
        return None
    device = tensor.device
    return lambda size: torch.empty(size, dtype=torch.int8, device=device)


def run_forward(
    call: Call,
    q: Sequence[Tensor],
    k: Sequence[Tensor],
    v: Sequence[Tensor],
    extras: Sequence[Tensor],
    want_lse: bool,
    job: _native.Job | None = None,
) -> tuple[list[Tensor], Tensor | None]:
    """out by segments, and lse if it is wanted."""
    out = new_out(call, q, k, v)
    lse = new_lse(call, q) if want_lse else None
    first = q[0]
    _native.forward(
        call.config,
        plain(q),
        plain(k),
        plain(v),
        plain(out),
        lse,
        call.extras(extras),
        stream_of(first),
        job,
        allocator_of(first),
        False,
    )
    return out, lse


def run_forward_of_one(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    extras: Sequence[Tensor],
    want_lse: bool,
    job: _native.Job | None,
    report: bool = False,
) -> tuple[Tensor, Tensor | None, _native.Report | None]:
    """The same without segments, which is the usual case and must cost little. With `report` also
    how it was served."""
    q_shape, dim, on_cpu = q.shape, v.shape[-1], q.is_cpu
    shape = q_shape if q_shape[-1] == dim else (*q_shape[:-1], dim)
    out = empty_like_layout(q, shape, call.cast or q.dtype)
    lse = new_lse(call, (q,)) if want_lse else None
    served = _native.forward(
        call.config,
        q,
        k,
        v,
        out,
        lse,
        call.extras(extras) if extras else None,
        0 if on_cpu else stream_of(q),
        job,
        None if on_cpu else allocator_of(q),
        report,
    )
    return out, lse, served


def new_gradients(
    call: Call, tensors: Sequence[Tensor], operands: int, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """Memory for the gradients that are wanted: of operands in their own layout, of the other
    tensors contiguous. `tensors`: the segments of q, k, v (`operands` of them), then extras."""
    gradients: list[Tensor | None] = []
    for n, (tensor, is_wanted) in enumerate(zip(tensors, wanted, strict=True)):
        if not is_wanted:
            gradients.append(None)
        elif n < operands:
            gradients.append(empty_like_input(tensor))
        else:
            gradients.append(torch.empty_like(tensor, memory_format=torch.contiguous_format))
    return gradients


def run_backward(
    call: Call,
    dout: Sequence[Tensor | None],
    dlse: Tensor | None,
    q: Sequence[Tensor],
    k: Sequence[Tensor],
    v: Sequence[Tensor],
    extras: Sequence[Tensor],
    out: Sequence[Tensor],
    lse: Tensor,
    wanted: Sequence[bool],
    job: _native.Job | None = None,
) -> list[Tensor | None]:
    """Gradients of the segments of q, k, v and of the extra tensors, None where not wanted."""
    gradients = new_gradients(call, [*q, *k, *v, *extras], len(q) + len(k) + len(v), wanted)
    upstream = _complete(dout, out)
    if upstream is None and dlse is None:
        return [g if g is None else g.zero_() for g in gradients]
    after_q, after_k = len(q), len(q) + len(k)
    after_v = after_k + len(v)
    dq, dk, dv = gradients[:after_q], gradients[after_q:after_k], gradients[after_k:after_v]
    named = call.extras(extras) or {}
    if dlse is not None:
        named["dlse"] = dlse
    for name, gradient in zip(call.names, gradients[after_v:], strict=True):
        if gradient is not None:
            put(named, gradient_name(name) or name, gradient)
    first = q[0]
    _native.backward(
        call.config,
        plain(q),
        plain(k),
        plain(v),
        plain(out),
        lse,
        upstream,
        _optional(dq),
        _optional(dk),
        _optional(dv),
        named or None,
        stream_of(first),
        job,
        allocator_of(first),
        False,
    )
    return gradients


def run_backward_of_one(
    call: Call,
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    wanted: Sequence[bool],
    job: _native.Job | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The usual case of run_backward: no segments, nothing but q, k and v, no gradient of lse."""
    on_cpu = q.is_cpu
    want_q, want_k, want_v = wanted
    dq = empty_like_input(q) if want_q else None
    dk = empty_like_input(k) if want_k else None
    dv = empty_like_input(v) if want_v else None
    _native.backward(
        call.config,
        q,
        k,
        v,
        out,
        lse,
        dout,
        dq,
        dk,
        dv,
        None,
        0 if on_cpu else stream_of(q),
        job,
        None if on_cpu else allocator_of(q),
        False,
    )
    return dq, dk, dv


def _optional(gradients: Sequence[Tensor | None]) -> object:
    if len(gradients) == 1:
        return gradients[0]
    return None if all(g is None for g in gradients) else plain(gradients)


def _complete(dout: Sequence[Tensor | None], out: Sequence[Tensor]) -> object:
    """The upstream gradient: None if there is none at all, zeros for segments without one."""
    if len(dout) == 1:
        return dout[0]
    if all(d is None for d in dout):
        return None
    return plain(
        [
            o.new_zeros(()).expand(o.shape) if d is None else d
            for d, o in zip(dout, out, strict=True)
        ]
    )
