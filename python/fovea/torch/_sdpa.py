"""scaled_dot_product_attention as Fovea answers it.

`Router.eager`, `Router.autocast` and `Router.traced` are what PyTorch's dispatcher calls for its
keys. A call that Fovea does not serve goes to PyTorch's composite kernel, never to the operator
again, and is counted by its reason; `strict` turns it into an error.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import _native
from .._band import Band
from .._config import Settings
from ._attention import compute, new_seed
from ._autocast import autocast_dtype
from ._autograd import ONE_EACH, AttentionFunction
from ._call import NAMES, Call, call_of, run_forward_of_one
from ._counts import counts
from ._eligible import why_delegated
from ._tensors import dispatch_modes, is_stand_in, is_transformed, is_watched

SDPA = torch.ops.aten.scaled_dot_product_attention.default
_CAUSAL = Band.causal("top_left")
MAX_KNOWN = 4096  # kinds of calls
_flash_enabled = torch._C._get_flash_sdp_enabled
_mem_efficient_enabled = torch._C._get_mem_efficient_sdp_enabled
_math_enabled = torch._C._get_math_sdp_enabled
_cudnn_enabled = torch._C._get_cudnn_sdp_enabled
_TENSORS = frozenset((Tensor, torch.nn.Parameter))
_AUTOCAST_KEYS = {
    "cpu": torch._C.DispatchKey.AutocastCPU,
    "cuda": torch._C.DispatchKey.AutocastCUDA,
}


class Router:
    """Answers the calls while it is enabled."""

    def __init__(
        self,
        strict: bool,
        settings: Settings,
        job: _native.Job | None,
        devices: frozenset[str],
        chain: Callable[..., Tensor] | None,
    ) -> None:
        self._strict, self._settings, self._job = strict, settings, job
        self._devices, self._chain = devices, chain
        self._calls: dict[tuple, Call] = {}
        self._known: dict[tuple, Call] = {}
        self._kernels_enabled = _sdp_switches()

    def eager(
        self,
        query,
        key,
        value,
        attn_mask=None,
        dropout_p=0.0,
        is_causal=False,
        *,
        scale=None,
        enable_gqa=False,
    ):
        """For tensors in memory, with or without gradients."""
        if attn_mask is None and dropout_p == 0:
            # A call like an earlier one is served without looking at all of it again.
            like = _likeness(query, key, value, is_causal, scale, enable_gqa)
            call = self._known.get(like)
            if call is not None and self._is_ordinary(query, key, value):
                return self._run(call, query, key, value, ())
        return self._answer(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, None, False
        )

    def autocast(
        self,
        query,
        key,
        value,
        attn_mask=None,
        dropout_p=0.0,
        is_causal=False,
        *,
        scale=None,
        enable_gqa=False,
    ):
        """Under autocast: the operands are read in their own dtypes, nothing is copied."""
        cast = autocast_dtype((query, key, value))
        return self._answer(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale,
            enable_gqa,
            cast,
            torch.compiler.is_compiling() or is_stand_in(query),
        )

    def traced(
        self,
        query,
        key,
        value,
        attn_mask=None,
        dropout_p=0.0,
        is_causal=False,
        *,
        scale=None,
        enable_gqa=False,
    ):
        """While torch.compile makes a graph."""
        return self._answer(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, None, True
        )

    def _answer(self, q, k, v, mask, dropout_p, is_causal, scale, enable_gqa, cast, traced):
        reason = self._not_ours(q, k, v, mask, traced)
        if reason is None and self._chain is not None:
            counts.add("chained")
            return self._chain(
                q,
                k,
                v,
                mask,
                dropout_p,
                is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
                strict=self._strict,
                job=self._job,
            )
        if reason is None:
            reason = why_delegated(
                q, k, v, mask, dropout_p, is_causal, scale, enable_gqa, cast is not None
            )
        if reason is None:
            as_operator = traced or is_watched()
            try:
                out = self._serve(q, k, v, mask, dropout_p, is_causal, scale, cast, as_operator)
                if mask is None and dropout_p == 0 and cast is None and not as_operator:
                    self._remember(q, k, v, is_causal, scale, enable_gqa)
                return out
            except NotImplementedError as error:
                reason = f"no kernel: {error}"
        if self._strict:
            raise NotImplementedError(
                f"[fovea] strict: scaled_dot_product_attention is left to PyTorch for {reason}; "
                f"got q={tuple(q.shape)} {q.dtype}, k={tuple(k.shape)}, v={tuple(v.shape)}"
            )
        counts.delegate(reason)
        return _delegate(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa)

    def _remember(self, q, k, v, is_causal, scale, enable_gqa) -> None:
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        like = _likeness(q, k, v, is_causal, scale, enable_gqa)
        self._known[like] = self._calls[is_causal, scale, 0.0, None, ()]

    def _is_ordinary(self, q, k, v) -> bool:
        """Whether operands of known kinds are memory, and nobody else is to answer or watch."""
        return not (
            dispatch_modes()  # tracing is one
            or is_transformed()
            or q.is_neg()
            or k.is_neg()
            or v.is_neg()
            or q._is_zerotensor()
            or k._is_zerotensor()
            or v._is_zerotensor()
            or forward_ad._current_level >= 0
            or _sdp_switches() != self._kernels_enabled
        )

    def _not_ours(self, q, k, v, mask, traced) -> str | None:
        """Why a call must stay PyTorch's, whoever could compute it."""
        if is_transformed():
            return "torch.func"
        operands = (q, k, v) if mask is None else (q, k, v, mask)
        if not traced:
            for tensor in operands:
                if type(tensor) not in _TENSORS:
                    return "tensor subclasses"
                if tensor.is_neg():
                    return "negated views"
                if tensor._is_zerotensor():
                    return "zero tensors"
        if forward_ad._current_level >= 0 and any(_has_tangent(t) for t in operands):
            return "forward-mode derivatives"
        if _sdp_switches() != self._kernels_enabled:
            return "sdpa_kernel, which chooses PyTorch's"
        if self._chain is not None:
            return "torch.compile, which sees none of the providers" if traced else None
        if q.device.type not in self._devices:
            return f"device {q.device.type}, for which this build of fovea has no kernels"
        return None

    def _serve(self, q, k, v, mask, dropout_p, is_causal, scale, cast, as_operator):
        skipped = False
        if mask is not None and mask.dtype == torch.bool and not as_operator:
            skipped, mask = _without_all_true(mask)
        names: tuple[str, ...] = ()
        extras: list[Tensor] = []
        if mask is not None:
            names, extras = ("mask",), [mask]
        if dropout_p > 0:
            names, extras = (*names, "seed"), [*extras, new_seed(q)]
        key = (is_causal, scale, dropout_p, cast, names)
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = self._new_call(is_causal, scale, dropout_p, cast, names)
        if as_operator:
            out, _ = compute(call.settings, names, [q], [k], [v], extras, False, None)
            return out[0]
        if skipped:
            counts.add("mask_all_true_skipped")
        return self._run(call, q, k, v, extras)

    def _run(self, call, q, k, v, extras):
        if torch.is_grad_enabled() and (
            q.requires_grad
            or k.requires_grad
            or v.requires_grad
            or (extras and extras[0].requires_grad)
        ):
            out = AttentionFunction.apply((call, ONE_EACH, False, self._job), q, k, v, *extras)
            counts.add("fp32_autograd")
            return out
        on_gpu = not q.is_cpu
        out, _, report = run_forward_of_one(call, q, k, v, extras, False, self._job, on_gpu)
        counts.add("fp32_direct" if on_gpu and report.staged_copies else "fp32_instream")
        return out

    def _new_call(self, is_causal, scale, dropout_p, cast, names) -> Call:
        options = self._settings.changed()
        options |= {
            "scale": None if scale is None else float(scale),
            "band": _CAUSAL if is_causal else None,
            "dropout": float(dropout_p),
            "cast": None if cast is None else NAMES[cast],
        }
        return call_of(Settings(**options), names)


def _likeness(q, k, v, is_causal, scale, enable_gqa) -> tuple:
    """What calls without mask and dropout have in common when one is as good as another."""
    kinds = type(q), type(k), type(v), q.dtype, k.dtype, v.dtype
    return q.shape, k.shape, v.shape, kinds, is_causal, scale, enable_gqa, q.is_cpu


def _has_tangent(tensor: Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None


def _sdp_switches() -> tuple[bool, ...]:
    """Which of PyTorch's own kernels are enabled: what sdpa_kernel changes."""
    return _flash_enabled(), _mem_efficient_enabled(), _math_enabled(), _cudnn_enabled()


def _without_all_true(mask: Tensor) -> tuple[bool, Tensor | None]:
    """Whether a mask that hides nothing was skipped, and the mask that is left. On a GPU the answer
    stays there: the kernels skip such tiles by themselves."""
    stored = mask
    for dim, (size, stride) in enumerate(zip(mask.shape, mask.stride())):
        if stride == 0 and size > 1:
            stored = stored.narrow(dim, 0, 1)  # expanded: look at what is in memory
    if mask.is_cpu:
        # A look at all of it wakes PyTorch's threads, which then wait actively on the cores that the
        # kernel is to use: most masks show in two of their rows that they hide something.
        if stored.dim() >= 2 and stored.numel() > 0:
            rows = stored[(0,) * (stored.dim() - 2)]
            if not (rows[0].all() and rows[-1].all()):
                return False, mask
        return (True, None) if stored.all().item() else (False, mask)
    hides_nothing = stored.all()
    if not torch.cuda.is_current_stream_capturing():  # a replay would count from what is recorded
        counts.add_on_device(hides_nothing)
    return False, mask


def _delegate(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa) -> Tensor:
    """PyTorch's composite kernel, and what autocast would have done before it."""
    device = q.device.type
    if device in _AUTOCAST_KEYS and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        q, k, v = (_as_autocast(t, dtype) for t in (q, k, v))
        mask = None if mask is None else _as_autocast(mask, dtype)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_AUTOCAST_KEYS[device])):
            return SDPA.decompose(
                q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
    return SDPA.decompose(q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _as_autocast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    floating = tensor.is_floating_point() and tensor.dtype != torch.float64
    return tensor.to(dtype) if floating else tensor
