"""The interface of the module `metal_sdpa_extension`, served by Fovea on CPU and CUDA, so that
programs written for it run unchanged. docs/python.md says what differs.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

import fovea
import fovea.torch
from fovea.torch._counts import counts
from fovea.torch._direct import direct_attention, direct_rope_attention

QUANT_NONE = 0
QUANT_INT8 = 3
QUANT_INT4 = 4
QUANT_TENSOR_WISE = 0
QUANT_BLOCK_WISE = 2

_COUNTERS = (
    "total",
    "quantized_autograd",
    "fp32_autograd",
    "fp32_direct",
    "fp32_instream",
    "rope_instream",
    "rope_autograd",
    "pytorch_fallback",
    "mask_all_true_skipped",
)


def metal_scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """scaled_dot_product_attention, with gradients."""
    return direct_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def rope_scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rope_cos: Tensor,
    rope_sin: Tensor | None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The same after RoPE on interleaved pairs; tables [S, D], [1, S, D] or [batch, S, D]."""
    return direct_rope_attention(query, key, value, rope_cos, rope_sin, attn_mask, is_causal, scale)


def metal_flash_attention_autograd(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, scale: float = 0.0
) -> Tensor:
    """Attention with gradients; a scale of 0 stands for 1/sqrt(head_dim)."""
    return direct_attention(
        query, key, value, None, 0.0, is_causal, scale or None, query.shape[-3] != key.shape[-3]
    )


def metal_quantized_flash_attention_autograd(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool = False,
    scale: float = 0.0,
    target_precision: int = QUANT_INT8,
    quant_mode: int = QUANT_TENSOR_WISE,
    attn_mask: Tensor | None = None,
) -> Tensor:
    """Not built yet."""
    raise NotImplementedError(_quantized(target_precision, quant_mode))


def set_quantization_mode(precision: int, block_mode: int) -> None:
    """QUANT_NONE is accepted; quantised modes are not built yet."""
    if precision not in (QUANT_NONE, QUANT_INT8, QUANT_INT4):
        raise ValueError(f"[fovea] precision: 0 (none), 3 (int8) or 4 (int4); got {precision!r}")
    if precision != QUANT_NONE:
        raise NotImplementedError(_quantized(precision, block_mode))


def clear_quantization_mode() -> None:
    """Nothing is ever set."""


def _quantized(precision: int, block_mode: int) -> str:
    name = {QUANT_INT8: "int8", QUANT_INT4: "int4"}.get(precision, f"precision {precision!r}")
    return (
        f"[fovea] quantised attention is not built yet: no kernel of fovea {fovea.version()} "
        f"computes in {name} (block mode {block_mode!r})"
    )


def get_dispatch_stats() -> dict[str, int]:
    """The nine counters of what served the calls."""
    return {name: counts.named(name) for name in _COUNTERS}


def reset_dispatch_stats() -> None:
    """Sets them to zero."""
    counts.reset()


def register_backend() -> None:
    """torch.nn.functional.scaled_dot_product_attention is Fovea's from here on."""
    fovea.torch.enable()


def unregister_backend() -> None:
    """And PyTorch's again."""
    fovea.torch.disable()


def is_metal_available() -> bool:
    """Whether there is a Metal device that is served."""
    return any(device["type"] == "metal" for device in fovea.info()["devices"])


def get_version() -> str:
    """Fovea's version."""
    return fovea.version()


def attention_mechanism(name: str) -> Callable[..., Tensor]:
    """The function that a mechanism's name stands for: metal-flash-attention, and with -int8 or
    -int4, which are not built yet."""
    if name == "metal-flash-attention":
        return metal_scaled_dot_product_attention
    precisions = {
        "metal-flash-attention-int8": QUANT_INT8,
        "metal-flash-attention-int4": QUANT_INT4,
    }
    if name in precisions:
        raise NotImplementedError(_quantized(precisions[name], QUANT_BLOCK_WISE))
    raise ValueError(
        f"[fovea] name: metal-flash-attention, metal-flash-attention-int8 or "
        f"metal-flash-attention-int4; got {name!r}"
    )
