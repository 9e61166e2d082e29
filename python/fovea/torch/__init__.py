"""Fovea for PyTorch: attention with gradients on PyTorch's tensors.

    import fovea.torch
    fovea.torch.enable()     # scaled_dot_product_attention is Fovea's from here on

docs/python.md in the repository has recipes.
"""

from __future__ import annotations

from ._attention import attention
from ._availability import unavailable_reason
from ._rope import (
    check_attached,
    eager_rope_attention,
    maybe_rope_attention,
    qk_norm_rope_attention,
    rope_attention,
    rotate,
    varlen_attention,
    why_not,
)
from ._routing import disable, enable, enabled, is_enabled, reset_stats, stats

__all__ = [
    "attention",
    "check_attached",
    "disable",
    "eager_rope_attention",
    "enable",
    "enabled",
    "is_enabled",
    "maybe_rope_attention",
    "qk_norm_rope_attention",
    "reset_stats",
    "rope_attention",
    "rotate",
    "stats",
    "unavailable_reason",
    "varlen_attention",
    "why_not",
]
