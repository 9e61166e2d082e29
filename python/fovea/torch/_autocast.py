"""The rule for inputs of different dtypes, the same on every path and for every provider.

Under autocast, q, k and v are read in the autocast dtype and the result is in it, whatever mixture
they come in; f64 is not cast. Outside of it a mixture is an error that names the three dtypes.
Gradients come back in each input's own dtype.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def autocast_dtype(tensors: Iterable[Tensor]) -> torch.dtype | None:
    """The dtype that the operands are to be read in; None: their own."""
    device = None
    for tensor in tensors:
        if device is None:
            device = tensor.device.type
            if not torch.is_autocast_enabled(device):
                return None
        if tensor.dtype == torch.float64 or not tensor.dtype.is_floating_point:
            return None
    return None if device is None else torch.get_autocast_dtype(device)
