"""Mixed dtypes at the boundary: what diffusion trainers need."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from reference import assert_by_rule, formula, gradients, operands  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import fovea.torch as ft  # noqa: E402
from fovea import providers  # noqa: E402

SDPA = F.scaled_dot_product_attention
HALF = [torch.bfloat16, torch.float16]


def rope(q, k, v):
    a = torch.linspace(0, 3, 33 * 8).reshape(33, 8)
    return ft.rope_attention(q, k, v, a.cos(), a.sin())


def varlen(q, k, v):
    cu = torch.tensor([0, 33])
    packed = (t[0].transpose(0, 1) for t in (q, k, v))
    return ft.varlen_attention(*packed, cu, cu, 33, 33)


PATHS = {
    "sdpa": SDPA,
    "attention": ft.attention,
    "rope": rope,
    "varlen": varlen,
    "provider_fovea": lambda *t: providers.attention(*t, provider="fovea"),
    "provider_sdp": lambda *t: providers.attention(*t, provider="sdp"),
    "provider_sub_quadratic": lambda *t: providers.attention(*t, provider="sub_quadratic"),
}


def mixed(low, batch=1):
    """q and k in f32, as an RMSNorm under autocast leaves them, v in 16 bits."""
    q, k, v = operands(batch, requires_grad=False)
    return q.requires_grad_(), k.requires_grad_(), v.to(low).requires_grad_()


@pytest.fixture(autouse=True)
def routed():
    ft.enable(strict=True)
    yield
    ft.disable()


def run(path, inputs, how="eager"):
    function = PATHS[path]
    if how == "compiled":
        function = torch.compile(function, fullgraph=True, backend="aot_eager")
    if how == "checkpointed":
        return checkpoint(function, *inputs, use_reentrant=False)
    return function(*inputs)


@pytest.mark.parametrize("low", HALF)
@pytest.mark.parametrize("path", PATHS)
def test_A1_A2_A5_A7_mixed_inputs_run_in_the_autocast_dtype_on_every_path(path, low):
    inputs = mixed(low)
    with torch.autocast("cpu", dtype=low):
        out = run(path, inputs)
    assert out.dtype == low
    found = gradients(out, inputs, torch.ones_like(out))
    assert [g.dtype for g in found] == [t.dtype for t in inputs]
    assert all(torch.isfinite(g).all() for g in found)


@pytest.mark.parametrize("low", HALF)
@pytest.mark.parametrize("how", ["eager", "compiled", "checkpointed"])
@pytest.mark.parametrize("path", ["sdpa", "attention", "rope", "varlen"])
def test_A6_the_same_compiled_and_checkpointed(path, how, low):
    inputs = mixed(low)
    with torch.autocast("cpu", dtype=low):
        out = run(path, inputs, how)
        expected = run(path, inputs)
    assert out.dtype == low and torch.equal(out, expected)
    for a, b in zip(
        gradients(out, inputs, torch.ones_like(out)),
        gradients(expected, inputs, torch.ones_like(out)),
    ):
        assert a.dtype == b.dtype and torch.equal(a, b)


@pytest.mark.parametrize("low", HALF)
def test_A7_equal_to_native_sdpa_under_autocast(low):
    inputs = mixed(low)
    with torch.autocast("cpu", dtype=low):
        out = SDPA(*inputs)
        ft.disable()
        native = SDPA(*inputs)
    exact = formula(*(t.to(low) for t in inputs))
    assert out.dtype == native.dtype
    assert_by_rule(out, exact, formula(*(t.to(low) for t in inputs), dtype=low))


def test_A1_all_f32_inputs_are_cast_as_native_autocast_does():
    q, k, v = operands()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert SDPA(q, k, v).dtype == torch.bfloat16


def test_A2_f64_is_not_cast():
    q, k, v = operands()
    ft.enable()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        doubles = [t.double() for t in (q, k, v)]
        assert SDPA(*doubles).dtype == torch.float64
        assert ft.stats()["reasons"] == {"dtype torch.float64": 1}
        with pytest.raises(RuntimeError, match="dtype"):
            SDPA(q, k, v.double())
        with pytest.raises(ValueError, match="q=f32, k=f32, v=f64"):
            ft.attention(q, k, v.double())
        with pytest.raises(ValueError, match="q=f32, k=f32, v=f64"):
            providers.attention(q, k, v.double())


@pytest.mark.parametrize("path", [p for p in PATHS if p != "sdpa"])
def test_A3_mixed_without_autocast_is_an_error_naming_all_three(path):
    q, k, v = mixed(torch.bfloat16)
    with pytest.raises(ValueError, match="q=f32, k=f32, v=bf16"):
        run(path, (q, k, v))


def test_A3_native_sdpa_keeps_its_own_error():
    q, k, v = mixed(torch.bfloat16)
    ft.enable()
    with pytest.raises(RuntimeError, match="dtype"):
        SDPA(q, k, v)


def test_A3_the_same_error_while_a_graph_is_made():
    q, k, v = mixed(torch.bfloat16)
    with pytest.raises(Exception, match="q=f32, k=f32, v=bf16"):
        run("attention", (q, k, v), "compiled")


def test_a_finite_mask_stays_finite_under_autocast():
    q, k, v = operands(q_len=5, kv_len=7)
    mask = torch.full((5, 7), torch.finfo(torch.float32).min)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = SDPA(q, k, v, attn_mask=mask)
    assert torch.allclose(out.float(), v.mean(2, keepdim=True).expand(out.shape), atol=2e-2)


def test_A4_the_cast_comes_before_the_checks():
    """A mask of f16 beside f32 operands is refused, but not when autocast casts them to f16."""
    q, k, v = operands()
    mask = torch.randn(33, 33).half()
    ft.enable()
    with pytest.raises(RuntimeError):
        SDPA(q, k, v, attn_mask=mask)
    ft.enable(strict=True)
    with torch.autocast("cpu", dtype=torch.float16):
        assert SDPA(q, k, v, attn_mask=mask).dtype == torch.float16


def test_an_explicit_cast_needs_no_autocast():
    q, k, v = mixed(torch.bfloat16)
    out = ft.attention(q, k, v, cast="bf16")
    assert out.dtype == torch.bfloat16
    assert [g.dtype for g in gradients(out, (q, k, v), torch.ones_like(out))] == [
        torch.float32,
        torch.float32,
        torch.bfloat16,
    ]


def test_A9_the_rule_needs_no_particular_rms_norm():
    """The mixed inputs are built directly above; here from a norm that computes in f32."""
    x = torch.randn(1, 33, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        qkv = F.linear(x, torch.randn(192, 64) / 8).view(1, 33, 3, 4, 16).permute(2, 0, 3, 1, 4)
        q, k = (F.rms_norm(t.float(), (16,)) for t in qkv[:2])
        assert q.dtype == torch.float32 and qkv[2].dtype == torch.bfloat16
        assert SDPA(q, k, qkv[2]).dtype == torch.bfloat16
