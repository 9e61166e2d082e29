"""Attention with gradients: the general call, and its special cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _native
from .._band import Band, band_of
from .._config import Settings
from ._autocast import autocast_dtype
from ._autograd import AttentionFunction, check_differentiable
from ._call import NAMES, call_of, run_forward
from ._ops import through_operator
from ._tensors import is_plain

Operand = Tensor | Sequence[Tensor]


def attention(
    q: Operand,
    k: Operand,
    v: Operand,
    *,
    mask: Tensor | None = None,
    is_causal: bool = False,
    band: Band | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    alibi: Tensor | None = None,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
    dropout_seed: Tensor | None = None,
    q_norm: Operand | None = None,
    k_norm: Operand | None = None,
    qk_norm_eps: float | None = None,
    rope: tuple[Tensor, Tensor] | None = None,
    rope_style: str = "interleaved",
    rope_table: str = "half",
    rotary_dim: int = 0,
    rope_offsets: tuple[int, int] = (0, 0),
    rope_offset_tensors: tuple[Tensor, Tensor] | None = None,
    rotate: tuple[bool, bool] = (True, True),
    cu_seqlens: tuple[Tensor, Tensor] | None = None,
    max_lengths: tuple[int, int] = (0, 0),
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    return_lse: bool = False,
    job: _native.Job | None = None,
    **options: Any,
) -> Any:
    """Attention over q [batch, q_heads, q_len, head_dim], k and v [batch, kv_heads, kv_len, ...].

    Each of q, k, v may be a list of 1 to 4 segments along the sequence (text, image), which are
    read where they lie; the result then has a piece for each segment of q. Under autocast mixed
    dtypes are read in the autocast dtype; see docs/python.md for that, and for what is not cast.

    mask: bool (True = attend) or additive, broadcastable to [batch, q_heads, q_len, kv_len].
    is_causal: anchored at the top left, as in PyTorch; `band` says everything else.
    dropout_p: probability; `dropout_seed` (int64 [1] on the device) is drawn from PyTorch's
        generator when it is not given.
    q_norm, k_norm: weights [head_dim] of RMSNorm over head_dim (lists beside segments); without
        weights, qk_norm_eps alone asks for the norm.
    rope: tables (cos, sin), [S, n], [1, S, n] or [batch, S, n], applied after the norm.
    cu_seqlens: (q, k) offsets of packed sequences: q [total, heads, head_dim]; with max_lengths.
    block_table: a paged KV cache, whose lengths are seqused_k; max_lengths[1] is its capacity.
    return_lse: returns (out, lse), lse [batch, q_heads, q_len] f32, differentiable.
    options: cast="bf16", kernel=..., backend=..., strict=True, deterministic=True, autotune=True.
    """
    q, k, v = _segments("q", q), _segments("k", k), _segments("v", v)
    names: list[str] = []
    extras: list[Tensor] = []

    def add(name: str, tensor: Tensor | None) -> None:
        if tensor is not None:
            names.append(name)
            extras.append(_tensor(name, tensor))

    add("mask", mask)
    add("alibi", alibi)
    add("sinks", sinks)
    _add_norms(add, "q_norm", q_norm, len(q))
    _add_norms(add, "k_norm", k_norm, len(k))
    if rope is not None:
        add("rope_cos", rope[0])
        add("rope_sin", rope[1])
    if rope_offset_tensors is not None:
        add("rope_q_offsets", rope_offset_tensors[0])
        add("rope_k_offsets", rope_offset_tensors[1])
    if cu_seqlens is not None:
        add("cu_seqlens_q", cu_seqlens[0])
        add("cu_seqlens_k", cu_seqlens[1])
    add("seqused_k", seqused_k)
    add("block_table", block_table)
    if dropout_p > 0:
        add("seed", new_seed(q[0]) if dropout_seed is None else dropout_seed)

    if "cast" not in options and (cast := autocast_dtype((*q, *k, *v))) is not None:
        options["cast"] = NAMES[cast]
    norm = qk_norm_eps is not None or q_norm is not None or k_norm is not None
    fields: dict[str, Any] = {
        "band": band_of(is_causal, band),
        "softcap": softcap,
        "dropout": dropout_p,
        "max_q_len": max_lengths[0],
        "max_kv_len": max_lengths[1],
        "qk_norm": norm,
        "qk_norm_eps": 1e-6 if qk_norm_eps is None else qk_norm_eps,
        "rope_style": rope_style,
        "rope_table": rope_table,
        "rotary_dim": rotary_dim,
        "rope_q_offset": rope_offsets[0],
        "rope_k_offset": rope_offsets[1],
        "rotate_q": rotate[0],
        "rotate_k": rotate[1],
        **options,
    }
    out, lse = compute(
        Settings(scale=scale, **fields), tuple(names), q, k, v, extras, return_lse, job
    )
    result = out[0] if len(out) == 1 else list(out)
    return (result, lse) if return_lse else result


def compute(
    settings: Settings,
    names: tuple[str, ...],
    q: list[Tensor],
    k: list[Tensor],
    v: list[Tensor],
    extras: list[Tensor],
    want_lse: bool,
    job: _native.Job | None,
) -> tuple[list[Tensor], Tensor | None]:
    """Runs a call on tensors: at once where they are plain, else as an operator."""
    tensors = (*q, *k, *v, *extras)
    if not is_plain(tensors):
        if job is not None:
            raise ValueError(
                f"[fovea] job: not under torch.compile, dispatch modes or torch.func; got {job!r}"
            )
        return through_operator(settings, names, q, k, v, extras)
    call = call_of(settings, names)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        check_differentiable(call, extras)
        counts = len(q), len(k), len(v)
        result = AttentionFunction.apply((call, counts, want_lse, job), *tensors)
        return ([result], None) if isinstance(result, Tensor) else (result[:-1], result[-1])
    return run_forward(call, q, k, v, extras, want_lse, job)


def new_seed(like: Tensor) -> Tensor:
    """A seed from PyTorch's generator of the device; in a captured graph each replay draws one."""
    return torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, device=like.device)


def _segments(name: str, operand: Operand) -> list[Tensor]:
    if isinstance(operand, Tensor):
        return [_tensor(name, operand)]
    if not isinstance(operand, (list, tuple)) or not operand:
        raise TypeError(f"[fovea] {name}: a tensor or a list of them; got {operand!r}")
    return [_tensor(name, segment) for segment in operand]


def _tensor(name: str, value: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"[fovea] {name}: a tensor; got {type(value).__name__} {value!r}")
    if value.layout is not torch.strided:
        raise ValueError(f"[fovea] {name}: a dense tensor; got {value.layout}")
    return value


def _add_norms(add, name: str, weights: Operand | None, segments: int) -> None:
    if weights is None:
        return
    listed = [weights] if isinstance(weights, Tensor) else list(weights)
    if len(listed) != segments:
        raise ValueError(
            f"[fovea] {name}: a weight for each segment; got {len(listed)} for {segments} segments"
        )
    for index, weight in enumerate(listed):
        add(f"{name}{index}", weight)
