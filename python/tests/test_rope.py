"""RoPE and QK-norm fused into attention, against eager rotation and against f64."""

import math

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from reference import assert_by_rule, formula, gradients, operands  # noqa: E402

import fovea  # noqa: E402
import fovea.torch as ft  # noqa: E402

S, D = 19, 16


def angles(*shape):
    return 3 * torch.randn(*shape, D // 2, generator=torch.Generator().manual_seed(3))


def tables(*shape, repeat=True, dtype=torch.float32):
    a = angles(*shape)
    cos, sin = a.cos(), a.sin()
    if repeat:
        cos, sin = (t.repeat_interleave(2, -1) for t in (cos, sin))
    return cos.to(dtype), sin.to(dtype)


def rotated(x, cos, sin):
    """Interleaved pairs in x's dtype: the definition, on tables with each value twice."""
    cos, sin = (t[..., 0::2].to(x.dtype) for t in (cos, sin))
    cos, sin = (t if t.dim() == 2 else t[:, None] for t in (cos, sin))
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def check(cos, sin, dtype=torch.float32, kv_heads=4, **options):
    """Forward and gradients with respect to q and k before the rotation, by the rule."""
    inputs = operands(2, 4, S, D, kv_heads=kv_heads, dtype=dtype, requires_grad=True)
    table = (
        (torch.complex(cos, sin)[..., ::2], None) if options.pop("as_complex", 0) else (cos, sin)
    )
    out = ft.rope_attention(*inputs, *table, **options)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(4)).to(dtype)
    found = [out, *gradients(out, inputs, dout)]
    results = []
    for kind in (torch.float64, dtype):
        leaves = [t.detach().to(kind).requires_grad_() for t in inputs]
        q, k = (rotated(t, cos.to(kind), sin.to(kind)) for t in leaves[:2])
        value = formula(q, k, leaves[2], dtype=kind, **options)
        results.append([value, *gradients(value, leaves, dout)])
    for name, actual, exact, ordinary in zip(("out", "dq", "dk", "dv"), found, *results):
        assert_by_rule(actual, exact, ordinary, name)
        assert actual.dtype == dtype


@pytest.mark.parametrize("shape", [(S,), (1, S), (2, S)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_R17_R19_tables_of_every_shape_and_dtype(shape, dtype):
    check(*tables(*shape, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_R17_16_bit_operands(dtype):
    check(*tables(S), dtype=dtype)


def test_R17_half_style_and_part_of_the_head():
    q, k, v = operands(2, 4, S, D)
    cos, sin = tables(S, repeat=False)
    found = ft.rope_attention(q, k, v, cos, sin, style="half")
    assert torch.allclose(
        found, ft.eager_rope_attention(q, k, v, cos, sin, style="half"), atol=1e-6
    )
    part = {"rotary_dim": 8}
    found = ft.rope_attention(q, k, v, cos[:, :4], sin[:, :4], **part)
    expected = ft.eager_rope_attention(q, k, v, cos[:, :4], sin[:, :4], **part)
    assert torch.allclose(found, expected, atol=1e-6)


def test_R19_per_sample_tables_and_causal():
    check(*tables(2, S), is_causal=True)


@pytest.mark.parametrize("additive", [False, True])
def test_R20_mask_gqa_and_gradient_in_one_fused_call(additive):
    generator = torch.Generator().manual_seed(5)
    mask = torch.rand(S, S, generator=generator) < 0.7
    mask.fill_diagonal_(True)
    if additive:
        mask = torch.randn(1, 4, S, S, generator=generator)
    check(*tables(S), kv_heads=2, mask=mask)
    assert fovea.stats()["fused_prologues"] == 2


def test_R21_gqa_rotates_at_the_heads_of_the_keys():
    check(*tables(2, S), kv_heads=1)
    kernels = fovea.stats()["kernels"]
    assert sum(k["completed"] for k in kernels.values()) == 2  # nobody repeated the keys first


def test_R22_complex_tables_equal_interleaved_ones():
    q, k, v = operands(2, 4, S, D)
    cos, sin = tables(S)
    freqs = torch.polar(torch.ones(S, D // 2), angles(S))
    assert torch.allclose(
        ft.rope_attention(q, k, v, freqs), ft.rope_attention(q, k, v, cos, sin), atol=1e-6
    )
    check(*tables(2, S), as_complex=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(cos=torch.ones(S, 5), sin=torch.ones(S, 5)), r"cos: its last dimension .*\(19, 5\)"),
        (dict(cos=torch.ones(S - 1, D), sin=torch.ones(S - 1, D)), "rope.*18"),
        (dict(sin=None), "sin: missing"),
        (dict(sin=torch.ones(S, D // 2)), "sin"),
        (dict(style="spiral"), 'rope_style: interleaved or half; got "spiral"'),
        (dict(rotary_dim=7), "cos: .*for 7 rotated dimensions"),
    ],
)
def test_R23_what_cannot_be_rotated_is_a_clear_error(change, message):
    q, k, v = operands(2, 4, S, D)
    cos, sin = tables(S)
    arguments = {"cos": cos, "sin": sin, **change}
    with pytest.raises(ValueError, match=message):
        ft.rope_attention(q, k, v, **arguments)


def test_R23_odd_head_dim_is_a_clear_error():
    q, k, v = operands(2, 4, S, 15)
    with pytest.raises(ValueError, match="rotary_dim.*15"):
        ft.rope_attention(q, k, v, torch.ones(S, 15), torch.ones(S, 15))


def test_V2_maybe_returns_none_with_a_reason_and_the_fallback_is_right():
    q, k, v = operands(2, 4, S, D)
    cos, sin = tables(S)
    out = ft.maybe_rope_attention(q, k, v, cos, sin)
    assert ft.why_not() == ""
    assert torch.allclose(out, ft.eager_rope_attention(q, k, v, cos, sin), atol=1e-6)
    doubles = [t.double() for t in (q, k, v)]
    assert ft.maybe_rope_attention(*doubles, cos, sin) is None
    assert "f64" in ft.why_not()
    exact = formula(rotated(doubles[0], cos, sin), rotated(doubles[1], cos, sin), doubles[2])
    assert torch.allclose(ft.eager_rope_attention(*doubles, cos, sin), exact, atol=1e-6)


def test_V4_an_output_that_lost_its_graph_is_noticed():
    q, k, v = operands(requires_grad=True)
    out = ft.attention(q, k, v)
    assert ft.check_attached(out, q, k, v) is out
    with pytest.raises(RuntimeError, match="not attached to the graph"):
        ft.check_attached(out.detach(), q, k, v)
    with torch.no_grad():
        ft.check_attached(out.detach(), q, k, v)


def test_a_gradient_through_a_path_without_one_is_refused():
    q, k, v = operands(2, 4, S, D)
    cos, sin = tables(S)
    with pytest.raises(NotImplementedError, match="rope_cos: requires a gradient"):
        ft.rope_attention(q, k, v, cos.requires_grad_(), sin)
    with pytest.raises(NotImplementedError, match="alibi: requires a gradient"):
        ft.attention(q, k, v, alibi=torch.rand(4, requires_grad=True))


def norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.to(x.dtype)


@pytest.mark.parametrize("compiled", [False, True])
def test_qk_norm_rope_with_segments_and_all_its_gradients(compiled):
    q, k, v = operands(2, 4, S, D, requires_grad=True)
    weights = [
        torch.rand(D, generator=torch.Generator().manual_seed(n)).requires_grad_() for n in range(4)
    ]
    cos, sin = tables(S)

    def fused(q, k, v, *w):
        text, image = (slice(0, 7), slice(7, S))
        parts = [[t[:, :, text], t[:, :, image]] for t in (q, k, v)]
        return ft.qk_norm_rope_attention(*parts, [w[0], w[1]], [w[2], w[3]], cos, sin, eps=1e-5)

    def eager(q, k, v, *w):
        q = torch.cat([norm(q[:, :, :7], w[0], 1e-5), norm(q[:, :, 7:], w[1], 1e-5)], 2)
        k = torch.cat([norm(k[:, :, :7], w[2], 1e-5), norm(k[:, :, 7:], w[3], 1e-5)], 2)
        return formula(rotated(q, cos, sin), rotated(k, cos, sin), v)

    function = torch.compile(fused, fullgraph=True, backend="aot_eager") if compiled else fused
    pieces = function(q, k, v, *weights)
    assert [p.shape[2] for p in pieces] == [7, 12]
    inputs = (q, k, v, *weights)
    leaves = [t.detach().double().requires_grad_() for t in inputs]
    exact = eager(*leaves)
    dout = torch.randn(exact.shape, generator=torch.Generator().manual_seed(6))
    found = gradients(torch.cat(pieces, 2), inputs, dout)
    assert torch.allclose(torch.cat(pieces, 2).double(), exact, atol=1e-6)
    for actual, truth in zip(found, gradients(exact, leaves, dout)):
        assert float((actual - truth).norm() / truth.norm()) < 1e-5


def test_a_segment_without_an_upstream_gradient():
    q, k, v = operands(2, 4, S, D, requires_grad=True)
    parts = [[t[:, :, :7], t[:, :, 7:]] for t in (q, k, v)]
    image = ft.attention(*parts)[1]
    whole = formula(q, k, v)[:, :, 7:]
    for a, b in zip(
        gradients(image, (q, k, v), torch.ones_like(image)),
        gradients(whole, (q, k, v), torch.ones_like(whole)),
    ):
        assert torch.allclose(a, b.float(), atol=1e-5)


def test_segments_and_weights_that_do_not_fit_are_named():
    q, k, v = operands(2, 4, S, D)
    with pytest.raises(ValueError, match="q_norm: a weight for each segment; got 2 for 1"):
        ft.qk_norm_rope_attention(q, k, v, [torch.ones(D)] * 2, [torch.ones(D)], *tables(S))
    with pytest.raises(ValueError, match="q: at most 4 segments; got 5"):
        ft.attention([q] * 5, k, v)
    with pytest.raises(TypeError, match="k: a tensor or a list of them; got 3"):
        ft.attention(q, 3, v)


def test_varlen_equals_each_sequence_alone_with_lse_and_gradients():
    lengths = [5, 0, 14]
    cu = torch.tensor([0, 5, 5, 19], dtype=torch.int32)
    q, k, v = (t[0].transpose(0, 1).contiguous().requires_grad_() for t in operands(1, 4, S, D))
    out, lse = ft.varlen_attention(q, k, v, cu, cu, 14, 14, is_causal=True, return_lse=True)
    assert out.shape == (S, 4, D) and lse.shape == (4, S)
    start, exact = 0, []
    for length in lengths:
        rows = slice(start, start + length)
        alone = [t[rows].transpose(0, 1)[None] for t in (q, k, v)]
        exact.append(formula(*alone, is_causal=True)[0].transpose(0, 1))
        start += length
    exact = torch.cat(exact)
    assert torch.allclose(out.double(), exact, atol=1e-6)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    for a, b in zip(gradients(out, (q, k, v), dout), gradients(exact, (q, k, v), dout)):
        assert torch.allclose(a, b, atol=1e-5)


def test_lse_is_right_and_differentiable():
    q, k, v = operands(2, 4, S, D, requires_grad=True)
    _, lse = ft.attention(q, k, v, return_lse=True)
    exact = torch.logsumexp(q.double() @ k.double().transpose(-2, -1) / math.sqrt(D), -1)
    assert torch.allclose(lse.double(), exact, atol=1e-6)
    for a, b in zip(
        gradients(lse, (q, k), torch.ones_like(lse)),
        gradients(exact, (q, k), torch.ones_like(exact)),
    ):
        assert torch.allclose(a, b, atol=1e-5)


def test_sinks_softcap_alibi_and_windows_with_gradients():
    q, k, v = operands(2, 4, S, D, requires_grad=True)
    sinks = torch.randn(4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    slopes = torch.tensor([0.5, 0.25, 0.1, 0.0])
    band = fovea.Band.window("top_left", 6, 2)
    out = ft.attention(q, k, v, sinks=sinks, softcap=3.0, alibi=slopes, band=band)
    i, j = torch.meshgrid(torch.arange(S), torch.arange(S), indexing="ij")
    s = 3 * torch.tanh(q.double() @ k.double().transpose(-2, -1) / math.sqrt(D) / 3)
    s = s - slopes[:, None, None] * (i - j).abs()
    s = s.masked_fill((j - i > 2) | (i - j > 6), -math.inf)
    with_sink = torch.cat((s, sinks.double()[None, :, None, None].expand(2, 4, S, 1)), -1)
    exact = torch.softmax(with_sink, -1)[..., :-1] @ v.double()
    assert torch.allclose(out.double(), exact, atol=1e-5)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    for a, b in zip(
        gradients(out, (q, k, v, sinks), dout), gradients(exact, (q, k, v, sinks), dout)
    ):
        assert torch.allclose(a, b, atol=1e-4)


def test_paged_cache_forward_and_refused_backward():
    q, k, v = operands(2, 4, 1, D, kv_heads=2, kv_len=12)
    pages_k, pages_v = (t.transpose(1, 2).reshape(6, 4, 2, D).contiguous() for t in (k, v))
    table = torch.arange(6, dtype=torch.int32).reshape(2, 3)
    used = torch.tensor([12, 7], dtype=torch.int32)
    out = ft.attention(q, pages_k, pages_v, block_table=table, seqused_k=used, max_lengths=(0, 12))
    hidden = (torch.arange(12) < used[:, None])[:, None, None]
    assert torch.allclose(out.double(), formula(q, k, v, hidden), atol=1e-6)
    q.requires_grad_()
    with pytest.raises((NotImplementedError, ValueError), match="[Pp]aged"):
        ft.attention(
            q, pages_k, pages_v, block_table=table, seqused_k=used, max_lengths=(0, 12)
        ).sum().backward()


def test_R35_R18_no_rotated_copy_is_allocated():
    q, k, v = operands(1, 4, 256, 64)
    a = torch.randn(256, 32)
    ft.rope_attention(q, k, v, a.cos(), a.sin())
    with torch.profiler.profile(profile_memory=True) as profile:
        out = ft.rope_attention(q, k, v, a.cos(), a.sin())
    allocated = sum(max(0, e.self_cpu_memory_usage) for e in profile.events())
    assert allocated == out.nbytes + 2 * a.nbytes


def test_norm_needs_no_weights():
    q, k, v = operands(2, 4, S, D)
    out = ft.attention(q, k, v, qk_norm_eps=1e-5)
    one = torch.ones(D, dtype=torch.float64)
    exact = formula(norm(q.double(), one, 1e-5), norm(k.double(), one, 1e-5), v)
    assert torch.allclose(out.double(), exact, atol=1e-6)
    assert torch.allclose(F.rms_norm(q, (D,), eps=1e-5), norm(q, one, 1e-5), atol=1e-6)
