"""Providers that are always there: Fovea, PyTorch's own, and one that works in pieces."""

from __future__ import annotations

import threading

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .. import _native
from ..torch._attention import attention
from ..torch._eligible import why_delegated
from ..torch._sdpa import SDPA
from ._entry import Entry, Loaded, Request

CHUNK_ROWS = 512


def _refuse_fovea(request: Request) -> str | None:
    return why_delegated(
        request.q,
        request.k,
        request.v,
        request.mask,
        request.dropout_p,
        request.is_causal,
        request.scale,
        request.enable_gqa,
        False,
    )


def _run_fovea(loaded: Loaded, request: Request) -> Tensor:
    return attention(
        request.q,
        request.k,
        request.v,
        mask=request.mask,
        is_causal=request.is_causal,
        scale=request.scale,
        dropout_p=request.dropout_p,
        job=request.job,
    )


def _run_sdp(loaded: Loaded, request: Request) -> Tensor:
    # The composite kernel, which is PyTorch's whether or not Fovea is enabled.
    return SDPA.decompose(
        request.q,
        request.k,
        request.v,
        request.mask,
        request.dropout_p,
        request.is_causal,
        scale=request.scale,
        enable_gqa=request.enable_gqa,
    )


_SWITCHES = threading.RLock()


def _run_sdp_no_mem(loaded: Loaded, request: Request) -> Tensor:
    allowed = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION]
    # PyTorch keeps these switches for the process: two threads that change them and change them back
    # would leave them changed.
    with _SWITCHES, sdpa_kernel(allowed):
        return _run_sdp(loaded, request)


def _refuse_sub_quadratic(request: Request) -> str | None:
    if request.mask is not None and request.is_causal:
        return "a mask with is_causal"
    if reason := request.other_ranks():
        return reason
    if request.q.dtype == torch.float64:
        return "dtype torch.float64"
    if request.q.shape[1] != request.k.shape[1] and not request.enable_gqa:
        return f"heads differ ({request.q.shape[1]}, {request.k.shape[1]}) without enable_gqa"
    return None


def sub_quadratic(request: Request, rows: int = CHUNK_ROWS) -> Tensor:
    """Attention by `rows` queries at a time, in f32: the scores in memory are rows * kv_len for
    each head, not q_len * kv_len. Rows that see nothing are 0."""
    q, k, v = request.q, request.k.float(), request.v.float()
    groups = q.shape[1] // max(k.shape[1], 1)
    if groups > 1:
        k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
    scale = q.shape[-1] ** -0.5 if request.scale is None else request.scale
    pieces = []
    for start in range(0, q.shape[2], rows):
        piece = q[:, :, start : start + rows].float()
        scores = scale * (piece @ k.transpose(-2, -1))
        scores = _masked(scores, request, start)
        top = (
            scores.amax(-1, keepdim=True)
            if scores.shape[-1]
            else scores.new_zeros((*scores.shape[:-1], 1))
        )
        weights = torch.exp(scores - top.masked_fill(top == -torch.inf, 0))
        total = weights.sum(-1, keepdim=True)
        weights = weights / total.masked_fill(total == 0, 1)
        weights = torch.nn.functional.dropout(weights, request.dropout_p)
        pieces.append((weights @ v).to(q.dtype))
    if not pieces:
        return q.new_empty((*q.shape[:-1], v.shape[-1]))
    return torch.cat(pieces, 2)


def _masked(scores: Tensor, request: Request, start: int) -> Tensor:
    rows, keys = scores.shape[-2:]
    if request.is_causal:
        hidden = torch.ones(rows, keys, dtype=torch.bool, device=scores.device).triu(start + 1)
        return scores.masked_fill(hidden, -torch.inf)
    if request.mask is None:
        return scores
    mask = request.mask
    if mask.dim() > 1 and mask.shape[-2] != 1:
        mask = mask[..., start : start + rows, :]
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, -torch.inf)
    return scores + mask


def _built_in(version: str, file: str):
    return lambda: Loaded(lambda: None, version, file)


ENTRIES = (
    Entry(
        "fovea",
        "Fovea",
        120,
        _built_in(_native.version(), _native.library_path()),
        _refuse_fovea,
        _run_fovea,
    ),
    Entry(
        "sdp_no_mem",
        "PyTorch SDPA without its memory-efficient kernel",
        80,
        _built_in(torch.__version__, torch.__file__),
        lambda request: None,
        _run_sdp_no_mem,
    ),
    Entry(
        "sdp",
        "PyTorch SDPA",
        70,
        _built_in(torch.__version__, torch.__file__),
        lambda request: None,
        _run_sdp,
    ),
    Entry(
        "sub_quadratic",
        "Sub-quadratic attention",
        10,
        _built_in(_native.version(), __file__),
        _refuse_sub_quadratic,
        lambda loaded, request: sub_quadratic(request),
    ),
)
