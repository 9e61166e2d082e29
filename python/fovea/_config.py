"""What a call computes, tensors aside: one immutable description, made native once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from . import _native
from ._band import Band


@dataclass(frozen=True)
class Settings:
    """Every option of include/fovea/attention.h and plan.h that is no tensor, under its name there.

    None stands for the library's default.
    """

    scale: float | None = None
    band: Band | None = None
    softcap: float = 0.0
    dropout: float = 0.0
    seed: int = 0
    offset: int = 0
    row_origin: int = 0
    column_origin: int = 0
    max_q_len: int = 0
    max_kv_len: int = 0
    qk_norm: bool = False
    qk_norm_eps: float = 1e-6
    rope_style: str = "interleaved"
    rope_table: str = "half"
    rotary_dim: int = 0
    rope_q_offset: int = 0
    rope_k_offset: int = 0
    rotate_q: bool = True
    rotate_k: bool = True
    cast: str | None = None
    tf32: bool = False
    kernel: str = ""
    backend: str = ""
    strict: bool = False
    deterministic: bool = False
    self_check: bool = True
    autotune: bool = False
    num_threads: int = 0

    def changed(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        return {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        }


@lru_cache(maxsize=1024)
def native(settings: Settings) -> _native.Config:
    """The library's form of the settings. Settings that compare equal compute the same."""
    options = settings.changed()
    band = options.pop("band", None)
    if isinstance(band, Band):
        options |= {"anchor": band.anchor, "left": band.left, "right": band.right}
    elif band is not None:
        raise TypeError(f"[fovea] band: a fovea.Band or None; got {band!r}")
    try:
        return _native.Config(**options)
    except TypeError as error:
        raise TypeError(f"[fovea] an option has a wrong type: {options}") from error
