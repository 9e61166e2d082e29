"""Which calls of scaled_dot_product_attention Fovea serves, and the reason for each that it leaves
to PyTorch. Whatever PyTorch accepts and this module does not know stays PyTorch's."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_HALF_OR_SINGLE = (torch.float32, torch.float16, torch.bfloat16)
MAX_HEAD_DIM = 512


def why_delegated(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    mixed: bool,
) -> str | None:
    """None: Fovea serves. `mixed`: whether dtypes may differ, which autocast allows."""
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        return f"dimensions: {q.dim()}, {k.dim()} and {v.dim()}, not 4"
    dtype = q.dtype
    if dtype not in _HALF_OR_SINGLE:
        return f"dtype {dtype}"
    if not mixed and (k.dtype != dtype or v.dtype != dtype):
        return "dtypes that differ"
    if mixed and (k.dtype not in _HALF_OR_SINGLE or v.dtype not in _HALF_OR_SINGLE):
        return "dtypes that differ"
    batch, q_heads, q_len, head_dim = q.shape
    k_batch, kv_heads, kv_len, k_dim = k.shape
    v_batch, v_heads, v_len, v_dim = v.shape
    if k_batch != batch or v_batch != batch:
        return "batches that differ"
    if k_dim != head_dim or v_len != kv_len or v_heads != kv_heads:
        return "shapes that do not fit"
    if q_heads == 0 or kv_heads == 0:
        return "no heads"
    if q_heads != kv_heads and (not enable_gqa or kv_heads == 0 or q_heads % kv_heads):
        return "heads that differ without being groups"
    if not 1 <= head_dim <= MAX_HEAD_DIM or not 1 <= v_dim <= MAX_HEAD_DIM:
        return f"head_dim outside 1 to {MAX_HEAD_DIM}"
    if k.device != q.device or v.device != q.device:
        return "devices that differ"
    if scale is not None and not math.isfinite(scale):
        return "a scale that is not finite"
    if not 0 <= dropout_p <= 1:
        return "a dropout outside 0 to 1"
    if mask is not None:
        return _mask_reason(mask, q, (batch, q_heads, q_len, kv_len), is_causal, mixed)
    return None


def _mask_reason(
    mask: Tensor, q: Tensor, scores: tuple[int, ...], is_causal: bool, mixed: bool
) -> str | None:
    if is_causal:
        return "a mask with is_causal"
    if mask.device != q.device:
        return "devices that differ"
    dtype = mask.dtype
    if dtype != torch.bool and dtype != q.dtype and dtype != torch.float32:
        if not mixed or dtype not in _HALF_OR_SINGLE:
            return f"a mask of {dtype}"
    rank = mask.dim()
    if not 1 <= rank <= 4:
        return f"a mask of {rank} dimensions"
    for size, wanted in zip(reversed(mask.shape), reversed(scores)):
        if size != wanted and size != 1:
            return "a mask that does not broadcast to the scores"
    return None
