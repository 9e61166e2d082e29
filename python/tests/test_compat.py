"""The contract of metal_sdpa_extension and pytorch_custom_op_ffi."""

import builtins
import inspect
import threading

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from reference import formula, gradients, operands  # noqa: E402

import fovea  # noqa: E402
import fovea.torch as ft  # noqa: E402
import metal_sdpa_extension as metal  # noqa: E402
import pytorch_custom_op_ffi as ffi  # noqa: E402

SIGNATURES = {
    "metal_scaled_dot_product_attention": "query,key,value,attn_mask=None,dropout_p=0.0,"
    "is_causal=False,scale=None,enable_gqa=False",
    "rope_scaled_dot_product_attention": "query,key,value,rope_cos,rope_sin,"
    "attn_mask=None,is_causal=False,scale=None",
    "metal_flash_attention_autograd": "query,key,value,is_causal=False,scale=0.0",
    "metal_quantized_flash_attention_autograd": "query,key,value,is_causal=False,"
    "scale=0.0,target_precision=3,quant_mode=0,attn_mask=None",
    "set_quantization_mode": "precision,block_mode",
    "clear_quantization_mode": "",
    "get_dispatch_stats": "",
    "reset_dispatch_stats": "",
    "register_backend": "",
    "unregister_backend": "",
    "is_metal_available": "",
    "get_version": "",
}
COUNTERS = [
    "total",
    "quantized_autograd",
    "fp32_autograd",
    "fp32_direct",
    "fp32_instream",
    "rope_instream",
    "rope_autograd",
    "pytorch_fallback",
    "mask_all_true_skipped",
]


@pytest.fixture(autouse=True)
def forgotten_reasons():
    ffi._reasons.clear()
    yield
    ffi._reasons.clear()


def counted():
    return {name: n for name, n in metal.get_dispatch_stats().items() if n}


def tables(length=33, head_dim=16):
    a = torch.randn(length, head_dim // 2, generator=torch.Generator().manual_seed(1))
    return (t.repeat_interleave(2, -1) for t in (a.cos(), a.sin()))


def test_R1_names_order_defaults_and_constants():
    for name, wanted in SIGNATURES.items():
        parameters = inspect.signature(getattr(metal, name)).parameters.values()
        found = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
        assert ",".join(found) == wanted, name
    assert (metal.QUANT_NONE, metal.QUANT_INT8, metal.QUANT_INT4) == (0, 3, 4)
    assert (metal.QUANT_TENSOR_WISE, metal.QUANT_BLOCK_WISE) == (0, 2)
    assert list(metal.get_dispatch_stats()) == COUNTERS
    assert metal.get_version() == ffi.metal_sdpa_version() == fovea.version()
    assert metal.is_metal_available() is False and ffi.is_metal_sdpa_available() is True


def test_R2_register_and_unregister():
    q, k, v = operands()
    for register, unregister in (
        (metal.register_backend, metal.unregister_backend),
        (ffi.register_metal_sdpa_backend, ffi.unregister_metal_sdpa_backend),
    ):
        register()
        F.scaled_dot_product_attention(q, k, v)
        unregister()
        F.scaled_dot_product_attention(q, k, v)
    with ffi.use_metal_sdpa():
        F.scaled_dot_product_attention(q, k, v)
    F.scaled_dot_product_attention(q, k, v)
    assert counted() == {"total": 3, "fp32_instream": 3}


def test_R13_each_call_counts_once_in_its_own_counter():
    q, k, v = operands()
    metal.metal_scaled_dot_product_attention(q, k, v)
    metal.metal_scaled_dot_product_attention(*(t.half() for t in (q, k, v)))
    assert counted() == {"total": 2, "fp32_instream": 2}
    q.requires_grad_()
    out = metal.metal_scaled_dot_product_attention(q, k, v)
    assert counted() == {"total": 3, "fp32_instream": 2, "fp32_autograd": 1}
    out.sum().backward()
    with torch.no_grad():
        metal.metal_flash_attention_autograd(q, k, v)
    assert counted() == {"total": 4, "fp32_instream": 3, "fp32_autograd": 1}


def test_R13_a_call_that_staged_a_copy_counts_as_direct(monkeypatch):
    """CPU kernels stage none; a report of a device that did is put in their place."""
    from fovea.torch import _sdpa

    class Staged:
        staged_copies = 1

    class NotOnCpu(torch.Tensor):
        is_cpu = False

    monkeypatch.setattr(_sdpa, "_TENSORS", {NotOnCpu})
    monkeypatch.setattr(_sdpa, "run_forward_of_one", lambda call, q, *rest: (q, None, Staged()))
    q, k, v = (t.as_subclass(NotOnCpu) for t in operands())
    metal.metal_scaled_dot_product_attention(q, k, v)
    assert counted() == {"total": 1, "fp32_direct": 1}


def test_R12_what_is_left_to_pytorch_is_counted_with_a_right_result():
    q, k, v = (t.double() for t in operands())
    out = metal.metal_scaled_dot_product_attention(q, k, v)
    assert counted() == {"total": 1, "pytorch_fallback": 1}
    assert torch.allclose(out, formula(q, k, v))


def test_R10_all_true_masks_are_counted():
    q, k, v = operands()
    mask = torch.ones(33, 33, dtype=torch.bool)
    metal.metal_scaled_dot_product_attention(q, k, v, mask)
    mask[0, 1] = False
    metal.metal_scaled_dot_product_attention(q, k, v, mask)
    assert counted() == {"total": 2, "fp32_instream": 2, "mask_all_true_skipped": 1}


def test_R14_counters_are_exact_under_threads_and_reset_to_zero():
    q, k, v = operands(1, 1, 4, 8)

    def work():
        for _ in range(100):
            metal.metal_scaled_dot_product_attention(q, k, v)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted() == {"total": 400, "fp32_instream": 400}
    metal.reset_dispatch_stats()
    assert counted() == {} and list(metal.get_dispatch_stats()) == COUNTERS


def test_R15_rope_counts_in_its_own_counters():
    q, k, v = operands()
    cos, sin = tables()
    out = metal.rope_scaled_dot_product_attention(q, k, v, cos, sin)
    assert counted() == {"total": 1, "rope_instream": 1}
    assert torch.allclose(out, ft.eager_rope_attention(q, k, v, cos, sin), atol=1e-6)
    q.requires_grad_()
    metal.rope_scaled_dot_product_attention(q, k, v, cos, sin).sum().backward()
    assert counted() == {"total": 2, "rope_instream": 1, "rope_autograd": 1}
    assert q.grad is not None


def test_a_scale_of_zero_is_the_default_of_the_autograd_function():
    q, k, v = operands(kv_heads=2)
    out = metal.metal_flash_attention_autograd(q, k, v)
    assert torch.allclose(out.double(), formula(q, k, v), atol=1e-6)
    out = metal.metal_flash_attention_autograd(q, k, v, True, 0.5)
    assert torch.allclose(out.double(), formula(q, k, v, is_causal=True, scale=0.5), atol=1e-6)


@pytest.mark.parametrize(
    "name", ["metal_scaled_dot_product_attention", "metal_flash_attention_autograd"]
)
def test_the_functions_compile(name):
    q, k, v = operands(requires_grad=True)
    function = torch.compile(getattr(metal, name), fullgraph=True, backend="aot_eager")
    out = function(q, k, v)
    exact = formula(q, k, v)
    assert torch.allclose(out.double(), exact, atol=1e-6)
    for a, b in zip(
        gradients(out, (q, k, v), torch.ones_like(out)),
        gradients(exact, (q, k, v), torch.ones_like(exact)),
    ):
        assert torch.allclose(a, b, atol=1e-5)


def test_R24_R25_R27_R28_R34_quantised_modes_say_that_they_are_not_built_yet():
    q, k, v = operands()
    with pytest.raises(NotImplementedError, match="not built yet: no kernel of fovea .* int8"):
        metal.metal_quantized_flash_attention_autograd(q, k, v)
    with pytest.raises(NotImplementedError, match="int4"):
        metal.set_quantization_mode(metal.QUANT_INT4, metal.QUANT_BLOCK_WISE)
    with pytest.raises(ValueError, match="precision: .* got 7"):
        metal.set_quantization_mode(7, 0)
    regular = metal.metal_scaled_dot_product_attention(q, k, v)
    metal.set_quantization_mode(metal.QUANT_NONE, metal.QUANT_TENSOR_WISE)
    metal.clear_quantization_mode()
    assert torch.equal(metal.metal_scaled_dot_product_attention(q, k, v), regular)
    assert metal.get_dispatch_stats()["quantized_autograd"] == 0


def test_V3_mechanism_names():
    q, k, v = operands()
    out = metal.attention_mechanism("metal-flash-attention")(q, k, v)
    assert torch.allclose(out.double(), formula(q, k, v), atol=1e-6)
    for name in ("metal-flash-attention-int8", "metal-flash-attention-int4"):
        with pytest.raises(NotImplementedError, match=name.rpartition("-")[2]):
            metal.attention_mechanism(name)
    with pytest.raises(ValueError, match="got 'metal'"):
        metal.attention_mechanism("metal")


def test_R33_import(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "fovea.torch._availability":
            raise ImportError("undefined symbol: fovea_nothing")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert ffi.is_metal_sdpa_available() is False
    reason = ffi.metal_sdpa_unavailable_reason()
    assert reason == "import: ImportError: undefined symbol: fovea_nothing"


def test_R33_device():
    assert ffi.metal_sdpa_unavailable_reason("cpu") == ""
    assert ffi.metal_sdpa_unavailable_reason("mps") == (
        "device: mps is not served here; served: " + _served()
    )


def _served():
    return ", ".join(sorted({d["type"] for d in fovea.info()["devices"]}))


@pytest.mark.parametrize(
    ("what", "spoil"),
    [
        ("forward parity", lambda out: out + 0.5),
        ("gradient parity", lambda out: out + (out - out.detach()) * 0.5),
    ],
)
def test_R33_parity(monkeypatch, what, spoil):
    from fovea.torch import _availability

    right = _availability.attention
    monkeypatch.setattr(_availability, "attention", lambda *t: spoil(right(*t)))
    limit = "0.0001" if what == "forward parity" else "0.001"
    reason = ffi.metal_sdpa_unavailable_reason()
    assert reason.startswith(f"{what}: error ") and reason.endswith(f" > {limit} against PyTorch")
    with pytest.raises(RuntimeError, match=what):
        ffi.register_metal_sdpa_backend()
