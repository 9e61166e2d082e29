"""Whether Fovea serves attention on a device of this machine; if not, at which step it fails."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._reports import info
from ._attention import attention
from ._sdpa import SDPA

FORWARD_LIMIT, GRADIENT_LIMIT = 1e-4, 1e-3  # f32, absolute


def unavailable_reason(device: str = "cpu") -> str:
    """Empty when attention is served there and agrees with PyTorch's; else "device: ...",
    "forward parity: ..." or "gradient parity: ...". (That Fovea cannot be imported, the caller
    sees.)"""
    kind = torch.device(device).type
    served = sorted({d["type"] for d in info()["devices"]})
    if kind not in served:
        return f"device: {kind} is not served here; served: {', '.join(served)}"
    generator = torch.Generator().manual_seed(0)
    q, k, v, dout = (torch.randn(1, 2, 33, 16, generator=generator).to(device) for _ in range(4))
    inputs = [t.requires_grad_() for t in (q, k, v)]
    ours, theirs = attention(q, k, v), SDPA.decompose(q, k, v)
    if message := _difference("forward parity", [ours], [theirs], FORWARD_LIMIT):
        return message
    gradients = [torch.autograd.grad(out, inputs, dout) for out in (ours, theirs)]
    return _difference("gradient parity", gradients[0], gradients[1], GRADIENT_LIMIT)


def _difference(what: str, ours: Sequence[Tensor], theirs: Sequence[Tensor], limit: float) -> str:
    error = max(float((a - b).detach().abs().max()) for a, b in zip(ours, theirs, strict=True))
    if error <= limit:
        return ""
    return f"{what}: error {error:.3g} > {limit:g} against PyTorch"
