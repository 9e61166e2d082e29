"""The interface of the package `pytorch_custom_op_ffi`, served by Fovea on CPU and CUDA."""

from __future__ import annotations

from contextlib import AbstractContextManager

_reasons: dict[str, str] = {}


def metal_sdpa_unavailable_reason(device: str = "cpu") -> str:
    """Why attention is not served on a device; empty when it is. "import: ...", "device: ...",
    "forward parity: ..." or "gradient parity: ..."; found once for each device."""
    if device not in _reasons:
        try:
            from fovea.torch._availability import unavailable_reason
        except Exception as error:
            return f"import: {type(error).__name__}: {error}"
        _reasons[device] = unavailable_reason(device)
    return _reasons[device]


def is_metal_sdpa_available() -> bool:
    """Whether this contract is served on this machine. The name is the contract's: Metal itself is
    `metal_sdpa_extension.is_metal_available()`."""
    return not metal_sdpa_unavailable_reason()


def register_metal_sdpa_backend() -> None:
    """torch.nn.functional.scaled_dot_product_attention is Fovea's from here on. Raises where that
    is not available, with the reason."""
    if reason := metal_sdpa_unavailable_reason():
        raise RuntimeError(f"[fovea] {reason}")
    import fovea.torch

    fovea.torch.enable()


def unregister_metal_sdpa_backend() -> None:
    """And PyTorch's again."""
    import fovea.torch

    fovea.torch.disable()


def use_metal_sdpa() -> AbstractContextManager[None]:
    """Fovea within a `with` block; afterwards what was before."""
    import fovea.torch

    return fovea.torch.enabled()


def metal_sdpa_version() -> str:
    """Fovea's version."""
    import fovea

    return fovea.version()
