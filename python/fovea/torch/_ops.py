"""The operators fovea::attention and fovea::attention_backward, for whatever looks at a graph of
operators: torch.compile, export, dispatch modes (FlopCounterMode among them).

What is computed travels as text (`spec`), so that a graph that was cached on disk means the same in
another process.
"""

from __future__ import annotations

import ast
from functools import lru_cache

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .._band import Band
from .._config import Settings
from ._autograd import SECOND_DERIVATIVE, check_differentiable
from ._batched import for_each_sample, is_batched
from ._call import (
    Call,
    call_of,
    new_gradients,
    new_lse,
    new_out,
    run_backward,
    run_forward,
)
from ._flops import backward_flops, forward_flops

_library = torch.library.Library("fovea", "DEF")
_library.define(
    "attention(Tensor[] q, Tensor[] k, Tensor[] v, Tensor[] extras, float? scale, str spec)"
    " -> (Tensor[], Tensor)"
)
_library.define(
    "attention_backward(Tensor[] dout, Tensor? dlse, Tensor[] q, Tensor[] k, Tensor[] v,"
    " Tensor[] extras, Tensor[] out, Tensor lse, bool[] wanted, float? scale, str spec)"
    " -> Tensor[]"
)


def text_of(settings: Settings, names: tuple[str, ...]) -> str:
    """A call as text, its scale aside."""
    options = settings.changed()
    options.pop("scale", None)
    band = options.pop("band", None)
    if band is not None:
        options["band"] = (band.anchor, band.left, band.right)
    return repr((names, options))


@lru_cache(maxsize=1024)
def call_from(spec: str, scale: float | None) -> Call:
    """The call that a text describes."""
    names, options = ast.literal_eval(spec)
    if "band" in options:
        options["band"] = Band(*options["band"])
    return call_of(Settings(scale=scale, **options), names)


def _forward(q, k, v, extras, scale, spec):
    return run_forward(call_from(spec, scale), q, k, v, extras, True)


def _backward(dout, dlse, q, k, v, extras, out, lse, wanted, scale, spec):
    gradients = run_backward(call_from(spec, scale), dout, dlse, q, k, v, extras, out, lse, wanted)
    return [g for g in gradients if g is not None]


for _key in ("CPU", "CUDA"):
    _library.impl("attention", _forward, _key)
    _library.impl("attention_backward", _backward, _key)


@torch.library.register_fake("fovea::attention", lib=_library)
def _forward_fake(q, k, v, extras, scale, spec):
    call = call_from(spec, scale)
    return new_out(call, q, k, v), new_lse(call, q)


@torch.library.register_fake("fovea::attention_backward", lib=_library)
def _backward_fake(dout, dlse, q, k, v, extras, out, lse, wanted, scale, spec):
    call = call_from(spec, scale)
    gradients = new_gradients(call, [*q, *k, *v, *extras], len(q) + len(k) + len(v), wanted)
    return [g for g in gradients if g is not None]


def _save(ctx, inputs, output):
    q, k, v, extras, scale, spec = inputs
    out, lse = output
    check_differentiable(call_from(spec, scale), extras)
    ctx.counts = len(q), len(k), len(v), len(extras), len(out)
    ctx.scale, ctx.spec = scale, spec
    ctx.save_for_backward(*q, *k, *v, *extras, *out, lse)
    ctx.set_materialize_grads(False)


def _differentiate(ctx, dout, dlse):
    parts, taken = [], iter(ctx.saved_tensors)
    for count in ctx.counts:
        parts.append([next(taken) for _ in range(count)])
    q, k, v, extras, out = parts
    lse = next(taken)
    wanted = [bool(w) for group in ctx.needs_input_grad[:4] for w in group]

    def gradients_of(upstream):
        *dout, dlse = upstream
        if all(d is None for d in upstream):
            dlse = torch.zeros_like(lse)
        filled = []
        if any(d is not None for d in dout):
            filled = [
                o.new_zeros(()).expand(o.shape) if d is None else d
                for d, o in zip(dout, out, strict=True)
            ]
        found = iter(
            torch.ops.fovea.attention_backward(
                filled, dlse, q, k, v, extras, out, lse, wanted, ctx.scale, ctx.spec
            )
        )
        return [next(found) if w else None for w in wanted]

    upstream = [*([None] * len(out) if dout is None else dout), dlse]
    if is_batched(upstream):
        gradients = iter(for_each_sample(gradients_of, upstream))
    else:
        gradients = iter(gradients_of(upstream))
    return (*([next(gradients) for _ in group] for group in (q, k, v, extras)), None, None)


def _refuse(ctx, *upstream):
    raise NotImplementedError(SECOND_DERIVATIVE)


torch.library.register_autograd(
    "fovea::attention", _differentiate, setup_context=_save, lib=_library
)
torch.library.register_autograd(
    "fovea::attention_backward",
    _refuse,
    setup_context=lambda ctx, inputs, output: None,
    lib=_library,
)


@register_flop_formula(torch.ops.fovea.attention, get_raw=True)
def _forward_flops(q, k, v, extras, scale, spec, **_):
    return forward_flops(call_from(spec, scale), q, k, v, extras)


@register_flop_formula(torch.ops.fovea.attention_backward, get_raw=True)
def _backward_flops(dout, dlse, q, k, v, extras, out, lse, wanted, scale, spec, **_):
    return backward_flops(call_from(spec, scale), q, k, v, extras)


def through_operator(
    settings: Settings,
    names: tuple[str, ...],
    q: list[Tensor],
    k: list[Tensor],
    v: list[Tensor],
    extras: list[Tensor],
) -> tuple[list[Tensor], Tensor]:
    """The call as an operator."""
    spec = text_of(settings, names)
    return torch.ops.fovea.attention(q, k, v, extras, settings.scale, spec)
