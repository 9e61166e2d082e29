"""The gradient of a call, for PyTorch's eager mode. (Under torch.compile, dispatch modes and the
like, the operators of _ops.py stand in for it.)"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import _native
from ._batched import for_each_sample, is_batched
from ._call import (
    Call,
    gradient_name,
    run_backward,
    run_backward_of_one,
    run_forward,
    run_forward_of_one,
)
from ._tensors import is_transformed

Counts = tuple[int, int, int]  # segments of q, k and v
ONE_EACH = (1, 1, 1)
How = tuple[Call, Counts, bool, _native.Job | None]  # the bool: whether lse is wanted too


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
    """Returns (*out, lse), or out alone where there is one and nobody wants lse.

    `how` is (call, counts, want_lse, job). What is asked of PyTorch here is paid for in every step
    of training: docs/performance/python.md.
    """

    @staticmethod
    def forward(ctx, how: How, *tensors: Tensor):
        call, counts, want_lse, job = ctx.how = how
        if counts == ONE_EACH:
            q, k, v, *extras = tensors
            *results, _ = run_forward_of_one(call, q, k, v, extras, True, job)
        else:
            pieces, lse = run_forward(call, *split(counts, tensors), True, job)
            results = [*pieces, lse]
        ctx.save_for_backward(*tensors, *results)
        if len(results) == 2 and not want_lse:
            return results[0]
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx, *upstream: Tensor | None):
        how, saved, (_, *wanted) = ctx.how, ctx.saved_tensors, ctx.needs_input_grad
        if not torch.is_grad_enabled():
            try:
                return None, *gradients_of(how, wanted, saved, upstream)
            except RuntimeError:  # a batch of samples has no memory of its own to read
                if not is_batched(upstream):
                    raise
        return None, *differentiable_gradients_of(how, wanted, saved, upstream)


class BackwardFunction(torch.autograd.Function):
    """The first derivative where a second one might be asked for, which is refused."""

    @staticmethod
    def forward(ctx, how: How, wanted: Sequence[bool], saved_count: int, *tensors):
        return tuple(gradients_of(how, wanted, tensors[:saved_count], tensors[saved_count:]))

    @staticmethod
    def backward(ctx, *upstream):
        raise NotImplementedError(SECOND_DERIVATIVE)


SECOND_DERIVATIVE = (
    "[fovea] attention has no second derivative; use create_graph=False, or PyTorch's own "
    "(fovea.torch.disable(), or sdpa_kernel(SDPBackend.MATH) around the call)"
)


def differentiable_gradients_of(
    how: How,
    wanted: Sequence[bool],
    saved: Sequence[Tensor],
    upstream: Sequence[Tensor | None],
) -> Sequence[Tensor | None]:
    """gradients_of for a batch of samples, and where their own gradient might be asked for."""
    if is_batched(upstream):
        return for_each_sample(
            lambda one: differentiable_gradients_of(how, wanted, saved, one), upstream
        )
    if torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (*saved, *upstream)
    ):
        if is_transformed():
            raise NotImplementedError(f"{SECOND_DERIVATIVE}; got create_graph=True under vmap")
        return BackwardFunction.apply(how, wanted, len(saved), *saved, *upstream)
    return gradients_of(how, wanted, saved, upstream)


def gradients_of(
    how: How,
    wanted: Sequence[bool],
    saved: Sequence[Tensor],
    upstream: Sequence[Tensor | None],
) -> Sequence[Tensor | None]:
    """Gradients of the flat list of inputs. `upstream`: of out's pieces, and of lse unless it was
    not returned."""
    call, counts, _, job = how
    if len(saved) == 5 and len(upstream) == 1 and upstream[0] is not None:
        return run_backward_of_one(call, upstream[0], *saved, wanted, job)
    segments = counts[0]
    dlse = upstream[-1] if len(upstream) > segments else None
    inputs, out, lse = saved[: -segments - 1], saved[-segments - 1 : -1], saved[-1]
    q, k, v, extras = split(counts, inputs)
    return run_backward(call, upstream[:segments], dlse, q, k, v, extras, out, lse, wanted, job)
