"""The gradient of a call, for PyTorch's eager mode. (Under torch.compile, dispatch modes and the
like, the operators of _ops.py stand in for it.)"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import _native
from ._call import (
    Call,
    gradient_name,
    run_backward,
    run_backward_of_one,
    run_forward,
    run_forward_of_one,
)

Counts = tuple[int, int, int]  # segments of q, k and v
ONE_EACH = (1, 1, 1)


def split(
    counts: Counts, tensors: Sequence[Tensor]
) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
    """q, k, v and the extras of a flat list."""
    q, k, v = counts
    k += q
    v += k
    return tensors[:q], tensors[q:k], tensors[k:v], tensors[v:]


def check_differentiable(call: Call, extras: Sequence[Tensor]) -> None:
    """Refuses a gradient through what has none, instead of cutting it off in silence."""
    for name, tensor in zip(call.names, extras, strict=True):
        if tensor.requires_grad and gradient_name(name) is None:
            raise NotImplementedError(
                f"[fovea] {name}: requires a gradient, which attention has none of; detach() it. "
                f"Got a tensor of shape {tuple(tensor.shape)}"
            )


class AttentionFunction(torch.autograd.Function):
    """Returns (*out, lse), or out alone where there is one and nobody wants lse."""

    @staticmethod
    def forward(
        ctx, call: Call, counts: Counts, want_lse: bool, job: _native.Job | None, *tensors: Tensor
    ):
        results: tuple[Tensor | None, ...]
        if counts == ONE_EACH:
            q, k, v, *extras = tensors
            results = run_forward_of_one(call, q, k, v, extras, True, job)[:2]
        else:
            pieces, lse = run_forward(call, *split(counts, tensors), True, job)
            results = (*pieces, lse)
        ctx.save_for_backward(*tensors, *results)
        ctx.made_with = call, counts, job
        ctx.set_materialize_grads(False)
        return results if want_lse or len(results) > 2 else results[0]

    @staticmethod
    def backward(ctx, *upstream: Tensor | None):
        call, counts, job = ctx.made_with
        saved = ctx.saved_tensors
        wanted = ctx.needs_input_grad[4:]
        if len(upstream) == counts[0]:
            upstream = (*upstream, None)
        if torch.is_grad_enabled() and any(
            t is not None and t.requires_grad for t in (*saved, *upstream)
        ):
            gradients = BackwardFunction.apply(
                call, counts, job, wanted, len(saved), *saved, *upstream
            )
        else:
            gradients = gradients_of(call, counts, job, wanted, saved, upstream)
        return (None, None, None, None, *gradients)


class BackwardFunction(torch.autograd.Function):
    """The first derivative where a second one might be asked for, which is refused."""

    @staticmethod
    def forward(ctx, call: Call, counts: Counts, job, wanted, saved_count: int, *tensors):
        return tuple(
            gradients_of(call, counts, job, wanted, tensors[:saved_count], tensors[saved_count:])
        )

    @staticmethod
    def backward(ctx, *upstream):
        raise NotImplementedError(SECOND_DERIVATIVE)


SECOND_DERIVATIVE = (
    "[fovea] attention has no second derivative; use create_graph=False, or PyTorch's own "
    "(fovea.torch.disable(), or sdpa_kernel(SDPBackend.MATH) around the call)"
)


def gradients_of(call, counts, job, wanted, saved, upstream) -> list[Tensor | None]:
    """Gradients of the flat list of inputs."""
    if len(saved) == 5 and upstream[0] is not None and upstream[1] is None:
        q, k, v, out, lse = saved
        return run_backward_of_one(call, upstream[0], q, k, v, out, lse, wanted, job)
    segments = counts[0]
    inputs, out, lse = saved[: -segments - 1], saved[-segments - 1 : -1], saved[-1]
    q, k, v, extras = split(counts, inputs)
    return run_backward(call, upstream[:-1], upstream[-1], q, k, v, extras, out, lse, wanted, job)
