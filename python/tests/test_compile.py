"""torch.compile: graphs have our operator, fakes agree with results, nothing old is run."""

import os
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from reference import gradients, operands  # noqa: E402

import fovea  # noqa: E402
import fovea.torch as ft  # noqa: E402
from fovea._band import Band  # noqa: E402
from fovea._config import Settings  # noqa: E402
from fovea.torch._ops import call_from, text_of  # noqa: E402

SDPA = F.scaled_dot_product_attention


def attend(q, k, v):
    return SDPA(q, k, v, scale=0.3)


def forward_calls():
    return fovea.stats()["forward_calls"]


def compiled(function, backend="aot_eager"):
    return torch.compile(function, fullgraph=True, backend=backend)


@pytest.mark.parametrize("mode", ["grad", "no_grad", "inference"])
def test_graphs_made_while_enabled_are_ours(mode):
    q, k, v = operands(requires_grad=mode == "grad")
    expected = attend(q, k, v)
    with ft.enabled(strict=True):
        guard = {
            "grad": torch.enable_grad,
            "no_grad": torch.no_grad,
            "inference": torch.inference_mode,
        }[mode]
        with guard():
            out = compiled(attend)(q, k, v)
        assert torch.allclose(out, expected, atol=1e-6) and forward_calls() == 1
        if mode == "grad":
            dout = torch.randn_like(out)
            for a, b in zip(gradients(out, (q, k, v), dout), gradients(expected, (q, k, v), dout)):
                assert torch.allclose(a, b, atol=1e-5)
            assert fovea.stats()["backward_calls"] == 1


def test_graphs_made_before_enable_do_not_run_the_old_choice_nor_ours_after_disable():
    q, k, v = operands()
    function = compiled(attend)
    function(q, k, v)
    ft.enable(strict=True)
    function(q, k, v)
    assert forward_calls() == 1
    ft.disable()
    function(q, k, v)
    assert forward_calls() == 1


PROCESS = textwrap.dedent("""
    import sys, torch, fovea, fovea.torch
    import torch._inductor.config as config
    config.fx_graph_cache = True
    if sys.argv[1] == "enabled":
        fovea.torch.enable(strict=True)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 16, 8) for _ in range(3))
    function = torch.compile(torch.nn.functional.scaled_dot_product_attention, fullgraph=True)
    function(q, k, v)
    from torch._dynamo.utils import counters
    hits = counters["inductor"]["fxgraph_cache_hit"]
    hits += counters["aot_autograd"]["autograd_cache_hit"]
    print(fovea.stats()["forward_calls"], hits)
""")


@pytest.mark.slow
def test_a_cache_on_disk_never_brings_the_old_choice_across_processes(tmp_path):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}

    def run(state):
        done = subprocess.run(
            [sys.executable, "-c", PROCESS, state],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return [int(n) for n in done.stdout.split()]

    assert run("disabled")[0] == 0
    calls, hits = run("enabled")
    assert calls == 1 and hits == 0
    calls, hits = run("disabled")
    assert calls == 0 and hits > 0
    calls, hits = run("enabled")
    assert calls == 1


def test_inductor_agrees_with_eager():
    q, k, v = operands(requires_grad=True)

    def block(x, y, z):
        return torch.relu(attend(x * 2, y, z)).transpose(1, 2).flatten(2)

    with ft.enabled(strict=True):
        expected, out = block(q, k, v), compiled(block, "inductor")(q, k, v)
        assert torch.allclose(out, expected, atol=1e-6) and forward_calls() == 2
        dout = torch.randn_like(out)
        for a, b in zip(gradients(out, (q, k, v), dout), gradients(expected, (q, k, v), dout)):
            assert torch.allclose(a, b, atol=1e-5)


def test_dynamic_lengths_make_one_graph():
    with ft.enabled(strict=True):
        function = torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=True)
        for length in (16, 24, 40):
            q, k, v = operands(q_len=length)
            assert torch.allclose(function(q, k, v), attend(q, k, v), atol=1e-6)


def test_delegated_calls_compile():
    q, k, v = (t.double() for t in operands())
    with ft.enabled():
        assert torch.allclose(compiled(attend)(q, k, v), attend(q, k, v))
    with ft.enabled(strict=True), pytest.raises(Exception, match="strict"):
        compiled(attend)(q, k, v)


def test_dropout_in_a_graph_follows_the_generator():
    q, k, v = operands(requires_grad=True)

    def drop(q, k, v):
        return SDPA(q, k, v, dropout_p=0.4)

    with ft.enabled(strict=True):
        function = compiled(drop)
        torch.manual_seed(1)
        first = function(q, k, v)
        assert not torch.equal(first, function(q, k, v))
        torch.manual_seed(1)
        assert torch.equal(first, function(q, k, v))
        torch.manual_seed(1)
        assert torch.equal(first, drop(q, k, v))
        dout = torch.randn_like(first)
        torch.manual_seed(1)
        for a, b in zip(
            gradients(first, (q, k, v), dout), gradients(drop(q, k, v), (q, k, v), dout)
        ):
            assert torch.equal(a, b)


LAYOUTS = {
    "bhsd": lambda t: t,
    "bshd": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "permuted": lambda t: t.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0),
    "expanded": lambda t: t[:1].expand(t.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("v_head_dim", [16, 24])
def test_fakes_have_the_strides_and_dtypes_of_results(layout, v_head_dim):
    q, k, v = (
        LAYOUTS[layout](t).detach().requires_grad_() for t in operands(v_head_dim=v_head_dim)
    )
    mask = torch.zeros(33, 33, requires_grad=True)
    for names, extras, options in (
        ((), [], {}),
        (("mask",), [mask], {"band": Band.causal("bottom_right")}),
        (("sinks",), [torch.zeros(4, requires_grad=True)], {"cast": "bf16"}),
    ):
        settings = Settings(**options)
        torch.library.opcheck(
            torch.ops.fovea.attention.default,
            ([q], [k], [v], extras, 0.25, text_of(settings, names)),
        )


def test_a_call_as_text_means_the_same():
    settings = Settings(
        scale=0.5,
        band=Band.window("bottom_right", 3, None),
        cast="bf16",
        rope_style="half",
        strict=True,
    )
    call = call_from(text_of(settings, ("mask",)), 0.5)
    assert call.settings == settings and call.names == ("mask",)


def test_our_functions_compile_with_floats_that_change():
    q, k, v = operands()

    @compiled
    def function(q, k, v, scale):
        return ft.attention(q, k, v, scale=scale, is_causal=True)

    for scale in (0.1, 0.2, 0.3):
        expected = SDPA(q, k, v, scale=scale, is_causal=True)
        assert torch.allclose(function(q, k, v, scale), expected, atol=1e-6)


def test_a_job_inside_a_graph_is_refused():
    q, k, v = operands()
    job = fovea.job("work")
    with pytest.raises(Exception, match="job: not under torch.compile"):
        compiled(lambda *t: ft.attention(*t, job=job))(q, k, v)


def test_make_fx_sees_the_operators():
    from torch.fx.experimental.proxy_tensor import make_fx

    with ft.enabled(strict=True):
        graph = make_fx(attend)(*operands())
    assert "fovea.attention" in graph.code


def test_second_derivative_of_the_operator_is_refused():
    q, k, v = operands(requires_grad=True)
    spec = text_of(Settings(), ())
    out, _ = torch.ops.fovea.attention([q], [k], [v], [], None, spec)
    (first,) = torch.autograd.grad(out[0].square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        first.sum().backward()


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_A1_fakes_under_autocast_are_traced(low):
    """Some versions of PyTorch trace so, without saying that they compile."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), ft.enabled(strict=True), torch.autocast("cpu", dtype=low):
        q, k = torch.empty(1, 2, 5, 8), torch.empty(1, 2, 7, 8)
        out = SDPA(q, k, torch.empty(1, 2, 7, 8, dtype=low))
    assert out.shape == (1, 2, 5, 8) and out.dtype == low
