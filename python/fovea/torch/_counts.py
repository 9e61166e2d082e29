"""What became of the calls of scaled_dot_product_attention, exact under threads."""

from __future__ import annotations

import threading
from collections import Counter

import torch
from torch import Tensor


# Every call counts in one of these.
_KINDS = (
    "fp32_instream",
    "fp32_autograd",
    "fp32_direct",
    "rope_instream",
    "rope_autograd",
    "quantized_autograd",
    "pytorch_fallback",
    "chained",
)


class Counts:
    """Named counters with a lock. `delegated` counts calls left to PyTorch by reason."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._named: Counter[str] = Counter()
        self._delegated: Counter[str] = Counter()
        self._on_devices: dict[torch.device, Tensor] = {}

    def add(self, name: str) -> None:
        """Adds one."""
        with self._lock:
            self._named[name] += 1

    def delegate(self, reason: str) -> None:
        """Counts a call that PyTorch serves."""
        with self._lock:
            self._named["pytorch_fallback"] += 1
            self._delegated[reason] += 1

    def add_on_device(self, condition: Tensor) -> None:
        """Counts `mask_all_true_skipped` where the answer is on a GPU: it stays there, so that
        nothing waits, until the counters are read."""
        with self._lock:
            total = self._on_devices.get(condition.device)
            if total is None:
                # Not inference_mode's, which later calls could not add to.
                with torch.inference_mode(False):
                    total = torch.zeros((), dtype=torch.int64, device=condition.device)
                self._on_devices[condition.device] = total
            total.add_(condition)

    def named(self, name: str) -> int:
        """A counter; "total" is the sum of those that count a call each."""
        with self._lock:
            if name == "total":
                return sum(self._named[kind] for kind in _KINDS)
            count = self._named[name]
            if name == "mask_all_true_skipped":
                count += sum(int(total.item()) for total in self._on_devices.values())
            return count

    def delegated(self) -> dict[str, int]:
        """Calls left to PyTorch, by reason."""
        with self._lock:
            return dict(self._delegated)

    def reset(self) -> None:
        with self._lock:
            self._named.clear()
            self._delegated.clear()
            for total in self._on_devices.values():
                total.zero_()


counts = Counts()
