"""The calls of the compatibility modules: scaled_dot_product_attention and its RoPE form on Fovea
without registering anything, with the counters of that contract."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from .._config import Settings
from .._reports import info
from ._attention import attention
from ._autocast import autocast_dtype
from ._counts import counts
from ._rope import rope_attention
from ._sdpa import Router


@lru_cache(maxsize=1)
def _router() -> Router:
    devices = frozenset(d["type"] for d in info()["devices"])
    return Router(False, Settings(), None, devices, None)


def direct_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """scaled_dot_product_attention on Fovea, or on PyTorch where Fovea does not serve, counted."""
    if torch.compiler.is_compiling():
        if query.shape[1] != key.shape[1] and not enable_gqa:
            raise ValueError(
                f"[fovea] key: {key.shape[1]} heads for query's {query.shape[1]} without enable_gqa"
            )
        return attention(
            query, key, value, mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale
        )
    router = _router()
    if autocast_dtype((query, key, value)) is None:
        answer = router.eager
    else:
        answer = router.autocast
    return answer(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def direct_rope_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor | None,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """The same after RoPE on interleaved pairs, which is always fused."""
    out = rope_attention(
        query, key, value, cos, sin, mask=attn_mask, is_causal=is_causal, scale=scale
    )
    if not torch.compiler.is_compiling():
        counts.add("rope_autograd" if out.requires_grad else "rope_instream")
    return out
