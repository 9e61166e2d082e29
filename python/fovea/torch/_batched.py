"""Upstream gradients of many samples at once: is_grads_batched, jacobian(vectorize=True), and vmap
over torch.autograd.grad. Each sample is a backward of its own, as in PyTorch's attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Gradients = Sequence[Tensor | None]

_functorch = torch._C._functorch
_of_vmap = _functorch.is_batchedtensor
_of_engine = _functorch.is_legacy_batchedtensor  # is_grads_batched's own kind of vmap


def is_batched(tensors: Gradients) -> bool:
    """Whether one of the tensors stands for many samples."""
    for tensor in tensors:
        if tensor is not None and (_of_engine(tensor) or _of_vmap(tensor)):
            return True
    return False


def for_each_sample(function: Callable[[Gradients], Gradients], upstream: Gradients) -> Gradients:
    """function(upstream) of each sample; its results as such a batch again."""
    if any(t is not None and _of_engine(t) for t in upstream):
        level = torch._C._vmapmode_increment_nesting() - 1
        torch._C._vmapmode_decrement_nesting()
        remove, add = torch._remove_batch_dim, torch._add_batch_dim
        batched = [t is not None and _of_engine(t) for t in upstream]
    else:
        levels = [-1 if t is None else _functorch.maybe_get_level(t) for t in upstream]
        level = max(levels)  # the innermost vmap; function comes here again for those around it
        remove, add = _functorch._remove_batch_dim, _functorch._add_batch_dim
        batched = [one == level for one in levels]
    stacks = [remove(t, level, 0, 0).unbind() if b else None for t, b in zip(upstream, batched)]
    count = next(len(stack) for stack in stacks if stack is not None)
    samples = [
        function([t if stack is None else stack[n] for t, stack in zip(upstream, stacks)])
        for n in range(count)
    ]
    return [
        None if found[0] is None else add(torch.stack(found), 0, level) for found in zip(*samples)
    ]
