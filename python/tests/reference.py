"""The formulas in f64, an ordinary evaluation in the operands' dtype, and the rule that compares
with both: docs/tolerances.md."""

import math

import torch


def formula(q, k, v, mask=None, is_causal=False, scale=None, dtype=torch.float64):
    """Attention by its definition: S and P in `dtype`. Rows that see nothing are 0."""
    q, k, v = (t.to(dtype) for t in (q, k, v))
    if q.shape[1] != k.shape[1]:
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = (q @ k.transpose(-2, -1)) * scale
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    if mask is not None:
        if mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, -math.inf)
        else:
            scores = scores + mask.to(dtype)
    blind = (scores == -math.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(blind, 0), -1).masked_fill(blind, 0)
    return weights.to(dtype) @ v


def gradients(out, inputs, dout):
    return torch.autograd.grad(out, inputs, dout.to(out.dtype), allow_unused=True)


@torch.no_grad()
def relative_error(actual, exact):
    exact = exact.double()
    norm = exact.norm()
    error = (actual.double() - exact).norm()
    return float(error / norm if norm > 0 else error)


def assert_by_rule(actual, exact, unfused, what=""):
    """Relative L2 error at most twice that of the ordinary evaluation plus a little."""
    slack = 1e-6 if actual.dtype == torch.float32 else 1e-5
    limit = 2 * relative_error(unfused, exact) + slack
    error = relative_error(actual, exact)
    assert torch.isfinite(actual).all(), f"{what}: not finite"
    assert error <= limit, f"{what}: relative error {error:.3g} > {limit:.3g}"


def assert_attention_by_rule(function, q, k, v, **options):
    """Forward and gradients of function(q, k, v) against the formulas with the same options."""
    inputs = [
        t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in (q, k, v)
    ]
    out = function(*inputs)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(7)).to(out)
    found = [out, *gradients(out, inputs, dout)]
    exact, ordinary = (
        _all_of(inputs, dout, dtype, options) for dtype in (torch.float64, out.dtype)
    )
    for name, actual, truth, baseline in zip(("out", "dq", "dk", "dv"), found, exact, ordinary):
        assert_by_rule(actual, truth, baseline, name)
    return out


def _all_of(inputs, dout, dtype, options):
    leaves = [t.detach().to(dtype).requires_grad_() for t in inputs]
    out = formula(*leaves, dtype=dtype, **options)
    return [out, *gradients(out, leaves, dout)]


def operands(
    batch=2,
    q_heads=4,
    q_len=33,
    head_dim=16,
    kv_heads=None,
    kv_len=None,
    v_head_dim=None,
    dtype=torch.float32,
    seed=0,
    requires_grad=False,
    device="cpu",
):
    generator = torch.Generator().manual_seed(seed)
    kv_heads, kv_len = kv_heads or q_heads, q_len if kv_len is None else kv_len
    shapes = (
        (batch, q_heads, q_len, head_dim),
        (batch, kv_heads, kv_len, head_dim),
        (batch, kv_heads, kv_len, v_head_dim or head_dim),
    )
    return [
        torch.randn(shape, generator=generator).to(device, dtype).requires_grad_(requires_grad)
        for shape in shapes
    ]
