"""Which keys a query sees by position alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Anchor = Literal["top_left", "bottom_right"]


@dataclass(frozen=True)
class Band:
    """Query i sees key j when -left <= j - (i + o) <= right; None is no limit on that side.

    o is 0 with the anchor "top_left" (PyTorch's `is_causal`), and kv_len - q_len with
    "bottom_right" (the last query sees all keys, as in decoding). There is no default anchor.
    """

    anchor: Anchor
    left: int | None = None
    right: int | None = None

    @staticmethod
    def causal(anchor: Anchor) -> Band:
        """A query sees the keys up to its own position."""
        return Band(anchor, None, 0)

    @staticmethod
    def window(anchor: Anchor, left: int | None, right: int | None) -> Band:
        """A query sees `left` keys before its position and `right` keys after it."""
        return Band(anchor, left, right)


def band_of(is_causal: bool, band: Band | None) -> Band | None:
    """The band in force; `is_causal` is PyTorch's: anchored at the top left."""
    if not isinstance(is_causal, bool):
        raise TypeError(f"[fovea] is_causal: a bool; got {is_causal!r}")
    if is_causal and band is not None:
        raise ValueError(f"[fovea] is_causal: not together with band={band!r}")
    return Band.causal("top_left") if is_causal else band
