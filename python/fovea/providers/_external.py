"""Packages for GPUs that others install: FlashAttention 2, 3 and 4, xFormers, SageAttention.

Each refuses what its package does not compute, so that no argument is ever dropped: FlashAttention
has no masks, and its causal mask is anchored at the bottom right; SageAttention has no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._entry import Entry, Loaded, Request, load_from

_HALF = (torch.float16, torch.bfloat16)


def _common(request: Request, max_head_dim: int) -> str | None:
    if request.q.dtype not in _HALF:
        return f"dtype {request.q.dtype}, not float16 or bfloat16"
    if request.q.shape[-1] > max_head_dim:
        return f"head_dim {request.q.shape[-1]} > {max_head_dim}"
    if request.v.shape[-1] != request.q.shape[-1]:
        return f"v_head_dim {request.v.shape[-1]} differs from head_dim {request.q.shape[-1]}"
    if request.q.shape[1] != request.k.shape[1] and not request.enable_gqa:
        return f"heads differ ({request.q.shape[1]}, {request.k.shape[1]}) without enable_gqa"
    return None


def _refuse_flash(request: Request) -> str | None:
    if reason := request.other_ranks():
        return reason
    if request.mask is not None:
        return "it has no masks"
    if request.is_causal and request.q.shape[2] != request.k.shape[2]:
        return (
            f"its causal mask is anchored at the bottom right; q_len {request.q.shape[2]} and "
            f"kv_len {request.k.shape[2]} differ"
        )
    return _common(request, 256)


def _refuse_flash_without_dropout(request: Request) -> str | None:
    return "it has no dropout" if request.dropout_p > 0 else _refuse_flash(request)


def _first(result: Tensor | tuple) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


def _run_flash(loaded: Loaded, request: Request) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (request.q, request.k, request.v))
    options = {"dropout_p": request.dropout_p} if request.dropout_p > 0 else {}
    out = loaded.function(q, k, v, softmax_scale=request.scale, causal=request.is_causal, **options)
    return _first(out).transpose(1, 2)


def _refuse_xformers(request: Request) -> str | None:
    if reason := request.other_ranks():
        return reason
    if request.mask is not None and request.is_causal:
        return "a mask with is_causal"
    if request.is_causal and request.q.shape[2] != request.k.shape[2]:
        return f"causal with q_len {request.q.shape[2]} and kv_len {request.k.shape[2]}"
    if request.q.shape[1] != request.k.shape[1]:
        return f"heads differ ({request.q.shape[1]}, {request.k.shape[1]})"
    if request.q.dtype == torch.float64:
        return "dtype torch.float64"
    return None


def _run_xformers(loaded: Loaded, request: Request) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (request.q, request.k, request.v))
    bias = request.mask
    if bias is not None:
        if bias.dtype == torch.bool:
            bias = torch.zeros_like(bias, dtype=q.dtype).masked_fill_(~bias, -torch.inf)
        bias = bias.to(q.dtype).expand(*request.q.shape[:3], request.k.shape[2])
    elif request.is_causal:
        import xformers.ops

        bias = xformers.ops.LowerTriangularMask()
    out = loaded.function(q, k, v, attn_bias=bias, p=request.dropout_p, scale=request.scale)
    return out.transpose(1, 2)


def _refuse_sage(request: Request) -> str | None:
    if reason := request.other_ranks():
        return reason
    if request.needs_gradient:
        return "it has no gradient"
    if request.mask is not None:
        return "it has no masks"
    if request.dropout_p > 0:
        return "it has no dropout"
    if request.is_causal and request.q.shape[2] != request.k.shape[2]:
        return f"causal with q_len {request.q.shape[2]} and kv_len {request.k.shape[2]}"
    return _common(request, 128)


def _run_sage(loaded: Loaded, request: Request) -> Tensor:
    return loaded.function(
        request.q,
        request.k,
        request.v,
        tensor_layout="HND",
        is_causal=request.is_causal,
        sm_scale=request.scale,
    )


ENTRIES = (
    Entry(
        "flash_attn_4",
        "FlashAttention 4",
        112,
        lambda: load_from("flash_attn.cute", "flash_attn_func", distribution="flash-attn-4"),
        _refuse_flash_without_dropout,
        _run_flash,
        devices=("cuda",),
    ),
    Entry(
        "flash_attn_3",
        "FlashAttention 3",
        111,
        lambda: load_from(
            "flash_attn_interface",
            "flash_attn_func",
            distribution="flash_attn_3",
            binary=("flash_attn_3._C",),
        ),
        _refuse_flash_without_dropout,
        _run_flash,
        devices=("cuda",),
    ),
    Entry(
        "flash_attn_2",
        "FlashAttention 2",
        110,
        lambda: load_from(
            "flash_attn",
            "flash_attn_func",
            distribution="flash-attn",
            binary=("flash_attn_2_cuda",),
        ),
        _refuse_flash,
        _run_flash,
        devices=("cuda",),
    ),
    Entry(
        "xformers",
        "xFormers",
        100,
        lambda: load_from(
            "xformers.ops",
            "memory_efficient_attention",
            distribution="xformers",
            binary=("xformers._C",),
        ),
        _refuse_xformers,
        _run_xformers,
        devices=("cuda",),
    ),
    # 8-bit products: never chosen by priority, since it is not exact.
    Entry(
        "sageattention",
        "SageAttention",
        105,
        lambda: load_from(
            "sageattention",
            "sageattn",
            distribution="sageattention",
            binary=("sageattention._qattn_sm80", "sageattention._fused"),
        ),
        _refuse_sage,
        _run_sage,
        explicit_only=True,
        devices=("cuda",),
    ),
)
