"""Choosing among what is installed, with modules made for the test: found, ranked, proved."""

import importlib
import logging
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from reference import assert_attention_by_rule, formula, gradients, operands  # noqa: E402

import fovea  # noqa: E402
import fovea.torch as ft  # noqa: E402
from fovea import providers  # noqa: E402
from fovea.providers._entry import Request  # noqa: E402
from fovea.providers._external import ENTRIES  # noqa: E402

# Strict like the real one: one 16-bit dtype, [batch, length, heads, head_dim].
FLASH = """
    import torch
    __version__ = "9.8.7"
    calls = []
    fail = None

    def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False):
        if fail is not None:
            raise fail
        if not q.dtype == k.dtype == v.dtype or q.dtype not in (torch.float16, torch.bfloat16):
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        calls.append(tuple(q.shape))
        s = torch.einsum("bihd,bjhd->bhij", q.float(), k.float())
        s = s * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
        if causal:
            s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -torch.inf)
        return torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v.float()).to(q.dtype)
"""
BROKEN = {
    "ImportError": "raise ImportError('undefined symbol: _ZN3c10')",
    "OSError": "raise OSError('libcudart.so.12: cannot open shared object file')",
    "RuntimeError": "raise RuntimeError('no kernel image is available for sm_90')",
    "AttributeError": "",
}
NAMES = ["flash_attn", "flash_attn_interface", "xformers", "xformers.ops", "sageattention"]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a module where the providers look for it; its tensors may be the CPU's."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = {f.entry.name: f.entry for f in providers.found()}

    def put(module, text):
        path = tmp_path.joinpath(*module.split("."))
        path.mkdir(parents=True, exist_ok=True)
        for folder in (path, *path.parents):
            if folder == tmp_path:
                break
            folder.joinpath("__init__.py").touch()
        path.joinpath("__init__.py").write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        for entry in before.values():
            if entry.devices == ("cuda",):
                providers.register(replace(entry, devices=("cpu", "cuda")))
        providers.find_again()
        providers.found()
        return sys.modules.get(module)

    yield put
    for name in list(sys.modules):
        if name in NAMES or name.split(".")[0] in NAMES:
            del sys.modules[name]
    for entry in before.values():
        providers.register(entry)
    providers.find_again()


def half(**options):
    return operands(dtype=torch.bfloat16, **options)


def test_S1_found_at_import_without_a_flag_each_with_a_line(install):
    install("flash_attn", FLASH)
    assert "flash_attn_2" in providers.available()
    assert "FlashAttention 2 9.8.7" in providers.lines()
    assert providers.available()[0] == "fovea"
    assert f"Fovea {fovea.version()}" in providers.lines()


@pytest.mark.parametrize("kind", BROKEN)
def test_S2_a_broken_one_breaks_nothing_and_has_a_reason(install, kind):
    install("flash_attn", BROKEN[kind])
    assert "flash_attn_2" not in providers.available()
    reason = providers.why("flash_attn_2")
    assert reason.startswith(kind)
    assert BROKEN[kind][BROKEN[kind].find("('") + 2 : -2] in reason
    assert f"FlashAttention 2: not available: {reason}" in providers.lines()
    q, k, v = half()
    assert providers.attention(q, k, v).shape == q.shape


def test_S2_unknown_names_are_errors():
    with pytest.raises(ValueError, match="no provider is called 'nobody'; known: fovea"):
        providers.why("nobody")
    with pytest.raises(ValueError, match='unknown provider "nobody"'):
        providers.attention(*half(), provider="nobody")
    with pytest.raises(ValueError, match="priorities: no provider is called nobody"):
        providers.attention(*half(), priorities={"nobody": 1})


def test_S3_priorities_and_a_deterministic_order():
    order = {f.entry.name: f.entry.priority for f in providers.found()}
    assert order["fovea"] == 120 and order["flash_attn_2"] == 110 and order["xformers"] == 100
    assert (order["sdp_no_mem"], order["sdp"], order["sub_quadratic"]) == (80, 70, 10)
    assert order["fovea"] > order["flash_attn_4"] > order["flash_attn_3"] > order["flash_attn_2"]
    names = list(order)
    assert names == [f.entry.name for f in providers.found()]
    assert names == sorted(names, key=lambda n: (-order[n], n))


def test_S3_doggettx_takes_its_place_when_it_is_registered(install):
    template = next(f.entry for f in providers.found() if f.entry.name == "sdp")
    providers.register(replace(template, name="doggettx", label="Doggettx", priority=90))
    names = [f.entry.name for f in providers.found()]
    assert names.index("xformers") < names.index("doggettx") < names.index("sdp_no_mem")
    providers.unregister("doggettx")


def test_S4_availability_of_one_depends_on_no_other(install):
    install("xformers.ops", BROKEN["OSError"])
    install("flash_attn", FLASH)
    assert "flash_attn_2" in providers.available() and "xformers" not in providers.available()


def test_S5_an_explicit_choice_beats_priority(install):
    install("flash_attn", FLASH)
    q, k, v = half()
    providers.attention(q, k, v)
    assert not sys.modules["flash_attn"].calls
    out = providers.attention(q, k, v, provider="flash_attn_2")
    assert sys.modules["flash_attn"].calls == [(2, 33, 4, 16)]
    assert torch.allclose(out.double(), formula(q, k, v), atol=2e-2)
    providers.attention(q, k, v, priorities={"flash_attn_2": 500})
    assert len(sys.modules["flash_attn"].calls) == 2


def test_S6_an_explicit_choice_that_is_unavailable_raises():
    q, k, v = half()
    for call in (
        lambda: providers.attention(q, k, v, provider="xformers"),
        lambda: providers.apply("xformers"),
        lambda: ft.enable(provider="xformers"),
    ):
        with pytest.raises(
            NotImplementedError, match='"xformers" was chosen and cannot serve: Mod'
        ):
            call()
    assert not ft.is_enabled()


def test_S7_the_line_of_the_web_ui(caplog):
    with caplog.at_level(logging.INFO, "fovea.providers"):
        assert providers.apply() == "fovea"
        providers.apply("sdp")
    assert [r.getMessage() for r in caplog.records] == [
        "Applying attention optimization: fovea... done.",
        "Applying attention optimization: sdp... done.",
    ]


def test_P2_proof_names_version_and_file_of_what_was_loaded(install, proof_lines):
    install("flash_attn", FLASH)
    providers.attention(*half(), provider="flash_attn_2", job=fovea.job("one"))
    file = sys.modules["flash_attn"].__file__
    assert proof_lines == [
        f"[fovea] ran flash_attn_2 ver=9.8.7 file={file} d16 bfloat16 device=cpu"
    ]


def test_P2_fovea_proves_itself(proof_lines):
    providers.attention(*half(), job=fovea.job("one"))
    assert len(proof_lines) == 1
    assert proof_lines[0].startswith("[fovea] ran cpu.")
    assert f" ver={fovea.version()} file={fovea.library_path()} " in proof_lines[0]


def test_P1_P3_P5_a_provider_that_raises_is_not_proved_and_has_its_line(install, proof_lines):
    install("flash_attn", FLASH)
    sys.modules["flash_attn"].fail = RuntimeError("boom in the middle")
    q, k, v = half()
    job = fovea.job("failing")
    out = providers.attention(q, k, v, provider="flash_attn_2", job=job)
    assert torch.allclose(out.double(), formula(q, k, v), atol=2e-2)
    assert "[fovea] NOT used flash_attn_2 — RuntimeError: boom in the middle; served by fovea" in (
        proof_lines
    )
    assert not any("ran flash_attn" in line for line in proof_lines)
    assert not any("flash" in name for name in job.kernels_ran)
    assert fovea.stats()["kernels"]["flash_attn_2"] == {
        "launched": 1,
        "captured": 0,
        "replayed": 0,
        "completed": 0,
        "failed": 1,
    }


def test_P4_one_line_a_job_and_a_new_job_re_arms_it(install, proof_lines):
    install("flash_attn", FLASH)
    q, k, v = half()
    for name in ("first", "second"):
        job = fovea.job(name)
        for _ in range(3):
            providers.attention(q, k, v, provider="flash_attn_2", job=job)
        sys.modules["flash_attn"].fail = RuntimeError("boom")
        for _ in range(3):
            providers.attention(q, k, v, provider="flash_attn_2", job=job)
        sys.modules["flash_attn"].fail = None
    assert sum("ran flash_attn_2" in line for line in proof_lines) == 2
    assert sum("NOT used flash_attn_2" in line for line in proof_lines) == 2


def test_P6_nothing_is_printed_unless_it_is_asked_for():
    code = (
        "import torch, fovea.torch, fovea.providers as p, metal_sdpa_extension as m;"
        "q = torch.randn(1, 2, 8, 8); p.attention(q, q, q); p.apply(); fovea.torch.enable();"
        "torch.nn.functional.scaled_dot_product_attention(q, q, q); m.unregister_backend()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_F1_the_chain_goes_on_while_a_later_stage_works(install, monkeypatch):
    install("flash_attn", FLASH)
    sys.modules["flash_attn"].fail = RuntimeError("first")
    q, k, v = half()
    for name in ("fovea", "sdp_no_mem", "sdp"):
        entry = next(f.entry for f in providers.found() if f.entry.name == name)
        providers.register(replace(entry, run=_raise))
    lines = []
    fovea.set_proof_level("proof")
    fovea.set_proof_sink(lines.append)
    out = providers.attention(q, k, v, job=fovea.job("one"))
    assert torch.allclose(out.double(), formula(q, k, v), atol=2e-2)
    assert len(lines) == 5 and lines[-1].startswith("[fovea] ran sub_quadratic")
    assert all("served by sub_quadratic" in line for line in lines[:-1])
    entry = next(f.entry for f in providers.found() if f.entry.name == "sub_quadratic")
    providers.register(replace(entry, run=_raise))
    with pytest.raises(RuntimeError, match="a stage that fails"):
        providers.attention(q, k, v)
    assert not any("ran" in line for line in lines[5:])


def _raise(loaded, request):
    raise RuntimeError("a stage that fails")


STAGES = ["fovea", "sdp_no_mem", "sdp", "sub_quadratic"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", STAGES)
def test_F2_every_stage_equals_the_reference(name, dtype):
    mask = torch.rand(2, 1, 33, 40, generator=torch.Generator().manual_seed(1)) < 0.8
    bias = torch.randn(4, 33, 40, generator=torch.Generator().manual_seed(2)).to(dtype)
    for options in ({}, {"is_causal": True}, {"scale": 0.1}, {"mask": mask}, {"mask": bias}):
        q, k, v = operands(kv_len=40, dtype=dtype)

        def attend(q, k, v, options=options):
            ours = {"attn_mask" if n == "mask" else n: o for n, o in options.items()}
            return providers.attention(q, k, v, provider=name, strict=True, **ours)

        assert_attention_by_rule(attend, q, k, v, **options)
    q, k, v = operands(kv_heads=2, dtype=dtype)
    assert_attention_by_rule(
        lambda *t: providers.attention(*t, provider=name, strict=True, enable_gqa=True), q, k, v
    )


def test_F2_sub_quadratic_in_pieces_equals_the_whole_and_is_small():
    from fovea.providers._entry import Request
    from fovea.providers._own import sub_quadratic

    q, k, v = operands(1, 1, 300, 8)
    for options in ({}, {"is_causal": True}, {"mask": torch.randn(300, 300)}):
        pieces = sub_quadratic(Request(q, k, v, **options), rows=64)
        assert torch.allclose(pieces.double(), formula(q, k, v, **options), atol=1e-6)
    blind = sub_quadratic(Request(q, k, v, torch.zeros(300, 300, dtype=torch.bool)), rows=64)
    assert torch.equal(blind, torch.zeros_like(q))
    with torch.profiler.profile(profile_memory=True) as profile:
        sub_quadratic(Request(*operands(1, 1, 2048, 8)), rows=64)
    assert max(e.self_cpu_memory_usage for e in profile.events()) <= 4 * 64 * 2048


def test_F3_strict_disables_fallback(install):
    install("flash_attn", FLASH)
    sys.modules["flash_attn"].fail = RuntimeError("boom")
    with pytest.raises(RuntimeError, match="boom"):
        providers.attention(*half(), provider="flash_attn_2", strict=True)


def test_F3_sticky_cuda_errors_are_raised(install):
    install("flash_attn", FLASH)
    sys.modules["flash_attn"].fail = RuntimeError("CUDA error: an illegal memory access")
    with pytest.raises(RuntimeError, match="illegal memory access"):
        providers.attention(*half(), provider="flash_attn_2")
    sys.modules["flash_attn"].fail = torch.OutOfMemoryError("CUDA out of memory")
    assert providers.attention(*half(), provider="flash_attn_2") is not None


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_A7_the_mixed_dtype_crash_of_flash_attention_and_its_absence(install, low):
    install("flash_attn", FLASH)
    flash = sys.modules["flash_attn"]
    q, k, v = operands()
    q, k, v = q.requires_grad_(), k.requires_grad_(), v.to(low).requires_grad_()
    with torch.autocast("cpu", dtype=low):
        with pytest.raises(RuntimeError, match="only support fp16 and bf16"):
            flash.flash_attn_func(*(t.transpose(1, 2) for t in (q, k, v)))
        out = providers.attention(q, k, v, provider="flash_attn_2", strict=True)
    assert out.dtype == low
    assert [g.dtype for g in gradients(out, (q, k, v), torch.ones_like(out))] == [
        torch.float32,
        torch.float32,
        low,
    ]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"attn_mask": torch.ones(33, 40, dtype=torch.bool)}, "it has no masks"),
        ({"is_causal": True}, "anchored at the bottom right; q_len 33 and kv_len 40 differ"),
    ],
)
def test_what_flash_attention_does_not_compute_is_refused_not_dropped(install, options, reason):
    install("flash_attn", FLASH)
    q, k, v = half(kv_len=40)
    with pytest.raises(NotImplementedError, match=reason):
        providers.attention(q, k, v, provider="flash_attn_2", **options)
    assert not sys.modules["flash_attn"].calls
    with pytest.raises(NotImplementedError, match="dtype torch.float32"):
        providers.attention(*operands(), provider="flash_attn_2")


def test_sage_attention_serves_by_name_only_and_never_where_a_gradient_is_wanted(install):
    install(
        "sageattention",
        """
        __version__ = "2.2"
        def sageattn(q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None):
            return v.clone()
    """,
    )
    q, k, v = half()
    assert torch.equal(providers.attention(q, k, v, provider="sageattention"), v)
    assert not torch.equal(providers.attention(q, k, v), v)
    assert providers.apply(priorities={"sageattention": 900}) == "fovea"
    with pytest.raises(NotImplementedError, match="it has no gradient"):
        providers.attention(q.requires_grad_(), k, v, provider="sageattention")


def test_xformers_gets_masks_in_full(install):
    install(
        "xformers.ops",
        """
        import torch
        class LowerTriangularMask: pass
        def memory_efficient_attention(q, k, v, attn_bias=None, p=0.0, scale=None):
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            causal = isinstance(attn_bias, LowerTriangularMask)
            if not causal and attn_bias is not None:
                assert attn_bias.shape == (*q.shape[:3], k.shape[2])
            return torch.ops.aten.scaled_dot_product_attention.default.decompose(
                q, k, v, None if causal else attn_bias, p, causal, scale=scale).transpose(1, 2)
    """,
    )
    q, k, v = half()
    for options in (
        {},
        {"is_causal": True},
        {"attn_mask": torch.rand(33, 33) < 0.9},
        {"attn_mask": torch.randn(4, 1, 33)},
        {"scale": 0.1},
    ):
        out = providers.attention(q, k, v, provider="xformers", strict=True, **options)
        named = {"mask" if n == "attn_mask" else n: o for n, o in options.items()}
        assert torch.allclose(out.double(), formula(q, k, v, **named), atol=3e-2)


def test_enable_with_a_provider_routes_sdpa_through_the_chain(install, proof_lines):
    install("flash_attn", FLASH)
    q, k, v = half()
    sdpa = torch.nn.functional.scaled_dot_product_attention
    with ft.enabled(provider="flash_attn_2", job=fovea.job("one")):
        sdpa(q, k, v)
        assert sys.modules["flash_attn"].calls
        sys.modules["flash_attn"].fail = RuntimeError("boom")
        sdpa(q, k, v)
    assert any("served by fovea" in line for line in proof_lines)
    with (
        ft.enabled(provider="flash_attn_2", strict=True),
        pytest.raises(RuntimeError, match="boom"),
    ):
        sdpa(q, k, v)


def test_mixed_devices_are_named():
    q, k, v = half()
    with pytest.raises(ValueError, match="key: on meta, but query is on cpu"):
        providers.attention(q, k.to("meta"), v)


def test_packages_refuse_what_they_would_read_otherwise():
    q = torch.randn(2, 5, 8)
    mask = torch.ones(5, 5, dtype=torch.bool)
    four = torch.randn(1, 2, 5, 8)
    for entry in ENTRIES:
        assert "dimensions" in entry.refuse(Request(q, q, q))
    xformers = next(entry for entry in ENTRIES if entry.name == "xformers")
    assert xformers.refuse(Request(four, four, four, mask, is_causal=True)) == "a mask with is_causal"
