"""Attention with QK-norm and RoPE fused into it, and the same by eager operations."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ._attention import Operand, attention

_refusals = threading.local()


def tables_of(cos: Tensor, sin: Tensor | None) -> tuple[Tensor, Tensor]:
    """cos and sin of a call: two real tables, or one complex table (cos + i sin), which is read
    where it lies."""
    if not isinstance(cos, Tensor):
        raise TypeError(f"[fovea] cos: a tensor; got {type(cos).__name__} {cos!r}")
    if not cos.is_complex():
        if sin is None:
            raise ValueError(
                f"[fovea] sin: missing beside real cos of shape {tuple(cos.shape)}; only a complex "
                "table has both"
            )
        return cos, sin
    if sin is not None:
        raise ValueError(f"[fovea] sin: given beside a complex table; got shape {tuple(sin.shape)}")
    real = torch.view_as_real(cos)
    return real[..., 0], real[..., 1]


def table_kind(cos: Tensor, rotary_dim: int) -> str:
    """Whether a table has a value for each pair ("half") or each value twice ("duplicated")."""
    width = cos.shape[-1] if cos.dim() else 0
    if width == rotary_dim:
        return "duplicated"
    if 2 * width == rotary_dim:
        return "half"
    raise ValueError(
        f"[fovea] cos: its last dimension must be {rotary_dim} (each value twice) or "
        f"{rotary_dim / 2:g} (one a pair) for {rotary_dim} rotated dimensions; got shape "
        f"{tuple(cos.shape)}"
    )


def _head_dim(q: Operand) -> int:
    first = q if isinstance(q, Tensor) else q[0]
    return first.shape[-1]


def rope_attention(
    q: Operand,
    k: Operand,
    v: Operand,
    cos: Tensor,
    sin: Tensor | None = None,
    *,
    style: str = "interleaved",
    rotary_dim: int = 0,
    **options: Any,
) -> Any:
    """`attention` of q and k rotated by RoPE, with no rotated copy of them in memory.

    style: "interleaved" pairs (2i, 2i+1) or "half" pairs (i, i + rotary_dim/2). cos, sin: [S, n],
    [1, S, n] or [batch, S, n] of any float dtype, n = rotary_dim or half of it; or one complex
    table for both. Rows count over the segments of q and k together. `options`: those of
    `attention`, rope_offsets and rotate=(q, k) among them.
    """
    cos, sin = tables_of(cos, sin)
    table = table_kind(cos, rotary_dim or _head_dim(q))
    return attention(
        q,
        k,
        v,
        rope=(cos, sin),
        rope_style=style,
        rope_table=table,
        rotary_dim=rotary_dim,
        **options,
    )


def qk_norm_rope_attention(
    q: Operand,
    k: Operand,
    v: Operand,
    q_weight: Tensor | Sequence[Tensor] | None,
    k_weight: Tensor | Sequence[Tensor] | None,
    cos: Tensor,
    sin: Tensor | None = None,
    *,
    eps: float = 1e-6,
    style: str = "interleaved",
    rotary_dim: int = 0,
    **options: Any,
) -> Any:
    """`rope_attention` of q and k after RMSNorm over head_dim, all in one pass.

    With segments (text, image) q, k, v and the weights are lists; the result is one too.
    """
    return rope_attention(
        q,
        k,
        v,
        cos,
        sin,
        style=style,
        rotary_dim=rotary_dim,
        q_norm=q_weight,
        k_norm=k_weight,
        qk_norm_eps=eps,
        **options,
    )


def maybe_rope_attention(
    q: Operand, k: Operand, v: Operand, cos: Tensor, sin: Tensor | None = None, **options: Any
) -> Any | None:
    """`rope_attention`, or None where it cannot serve: `why_not()` then has the reason, and
    `eager_rope_attention` takes the same arguments."""
    try:
        result = rope_attention(q, k, v, cos, sin, **options)
    except (ValueError, NotImplementedError) as error:
        _refusals.last = str(error)
        return None
    _refusals.last = ""
    return result


def why_not() -> str:
    """Why the last `maybe_rope_attention` of this thread returned None; empty if it did not."""
    return getattr(_refusals, "last", "")


def rotate(
    x: Tensor,
    cos: Tensor,
    sin: Tensor | None = None,
    *,
    style: str = "interleaved",
    rotary_dim: int = 0,
    offset: int = 0,
) -> Tensor:
    """RoPE by eager operations, computed in f32, in x's dtype: a' = a cos - b sin, b' = a sin +
    b cos. What `rope_attention` fuses, for comparison and as a fallback."""
    cos, sin = tables_of(cos, sin)
    rotated = rotary_dim or x.shape[-1]
    rows = slice(offset, offset + x.shape[2])
    cos, sin = (_per_pair(t, rotated, style)[..., rows, :].float() for t in (cos, sin))
    head, rest = x[..., :rotated].float(), x[..., rotated:]
    if style == "interleaved":
        a, b = head[..., 0::2], head[..., 1::2]
        turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    else:
        a, b = head.chunk(2, -1)
        turned = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
    return torch.cat((turned.to(x.dtype), rest), -1)


def _per_pair(table: Tensor, rotary_dim: int, style: str) -> Tensor:
    """One value a pair, [.., 1, S, rotary_dim/2]."""
    if table_kind(table, rotary_dim) == "duplicated":
        table = table[..., 0::2] if style == "interleaved" else table[..., : rotary_dim // 2]
    return table if table.dim() == 2 else table.unsqueeze(1)


def eager_rope_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor | None = None,
    *,
    style: str = "interleaved",
    rotary_dim: int = 0,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Rotation by eager operations, then scaled_dot_product_attention."""
    q, k = (rotate(x, cos, sin, style=style, rotary_dim=rotary_dim) for x in (q, k))
    return F.scaled_dot_product_attention(
        q, k, v, mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_q_len: int,
    max_kv_len: int,
    **options: Any,
) -> Any:
    """`attention` of packed sequences: q [total_q, q_heads, head_dim], k and v [total_k, ...];
    sequence b owns the rows cu_seqlens[b] to cu_seqlens[b + 1] (int32 or int64, on the device).
    The maxima bound the lengths. `return_lse=True` gives lse [q_heads, total_q]."""
    return attention(
        q,
        k,
        v,
        cu_seqlens=(cu_seqlens_q, cu_seqlens_k),
        max_lengths=(int(max_q_len), int(max_kv_len)),
        **options,
    )


def check_attached(out: Tensor, *inputs: Tensor) -> Tensor:
    """`out`, if it is attached to the graph of gradients or none of the inputs asks for that; an
    error where gradients would be lost in silence."""
    wanted = [n for n, t in enumerate(inputs) if t.requires_grad]
    if torch.is_grad_enabled() and wanted and not out.requires_grad:
        raise RuntimeError(
            f"[fovea] out: not attached to the graph, though input {wanted[0]} of {len(inputs)} "
            "requires a gradient: the gradient would be lost"
        )
    return out
