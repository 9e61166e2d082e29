"""What kind of tensors a call is made on."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch
from torch import Tensor

_PLAIN = (Tensor, torch.nn.Parameter)
dispatch_modes = torch._C._len_torch_dispatch_stack  # how many are at work
_functorch_level = torch._C._functorch.peek_interpreter_stack
_is_compiling = torch.compiler.is_compiling
_STAND_INS = (
    ("torch._subclasses.fake_tensor", "FakeTensor"),
    ("torch._subclasses.functional_tensor", "FunctionalTensor"),
)


def is_transformed() -> bool:
    """Whether torch.func (vmap, grad, ...) is at work."""
    return _functorch_level() is not None


def is_watched() -> bool:
    """Whether somebody looks at the operators: torch.compile, a dispatch mode."""
    return dispatch_modes() > 0 or _is_compiling()


def is_stand_in(tensor: Tensor) -> bool:
    """Whether the tensor is one of those that PyTorch traces with, at this or that stage of it.
    Their classes are not imported for the question, which takes long."""
    for module, name in _STAND_INS:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(tensor, getattr(loaded, name)):
            return True
    return False


def is_plain(tensors: Iterable[Tensor]) -> bool:
    """Whether the tensors are memory and nobody watches the operators, so that a call may be made
    without one."""
    if _is_compiling() or dispatch_modes() or is_transformed():
        return False
    return all(type(t) in _PLAIN and not t.is_neg() for t in tensors)
