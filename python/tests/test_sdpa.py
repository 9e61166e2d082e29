"""scaled_dot_product_attention routed to Fovea: reached, right, valid wherever it was before."""

import threading

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from reference import assert_attention_by_rule, gradients, operands  # noqa: E402

import fovea  # noqa: E402
import fovea.torch as ft  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SDPA = F.scaled_dot_product_attention


def delegated():
    return ft.stats()["reasons"]


def calls_of_ours():
    stats = fovea.stats()
    return stats["forward_calls"], stats["backward_calls"]


def test_R2_reached_with_gradients_and_not_after_disable():
    q, k, v = operands(requires_grad=True)
    SDPA(q, k, v)
    assert calls_of_ours() == (0, 0)
    ft.enable()
    assert ft.is_enabled()
    SDPA(q, k, v).sum().backward()
    assert calls_of_ours() == (1, 1) and q.grad is not None
    with torch.no_grad():
        SDPA(q, k, v)
    with torch.inference_mode():
        SDPA(q, k, v)
    assert calls_of_ours() == (3, 1)
    ft.disable()
    SDPA(q, k, v).sum().backward()
    assert calls_of_ours() == (3, 1) and not ft.is_enabled()


def test_R2_context_manager_restores_what_was_before():
    q, k, v = operands()
    with ft.enabled(kernel="cpu.portable"):
        with ft.enabled():
            SDPA(q, k, v)
            assert "cpu.portable.forward" not in fovea.stats()["kernels"]
        SDPA(q, k, v)
        assert fovea.stats()["kernels"]["cpu.portable.forward"]["completed"] == 1
    assert not ft.is_enabled()


def test_R2_enabling_twice_and_disabling_twice_is_harmless():
    q, k, v = operands()
    ft.enable()
    ft.enable()
    SDPA(q, k, v)
    assert calls_of_ours()[0] == 1
    ft.disable()
    ft.disable()
    SDPA(q, k, v)
    assert calls_of_ours()[0] == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("batch", "heads", "q_len", "kv_len", "head_dim"),
    [
        (1, 1, 1, 1, 8),
        (2, 4, 33, 33, 16),
        (1, 3, 129, 70, 40),
        (1, 2, 7, 300, 72),
        (1, 1, 65, 65, 128),
    ],
)
def test_R3_R5_dtypes_and_shapes(dtype, batch, heads, q_len, kv_len, head_dim):
    q, k, v = operands(batch, heads, q_len, head_dim, kv_len=kv_len, dtype=dtype)
    ft.enable(strict=True)
    out = assert_attention_by_rule(SDPA, q, k, v)
    assert out.dtype == dtype and calls_of_ours() == (1, 1)


def test_R3_a_length_beyond_65535():
    q, k, v = operands(1, 1, 70_001, 8, kv_len=3)
    ft.enable(strict=True)
    out = SDPA(q, k, v)
    assert torch.allclose(out[:, :, -5:], SDPA(q[:, :, -5:], k, v), atol=1e-6)
    out = SDPA(q[:, :, :3], q, q)
    ft.disable()
    assert torch.allclose(out, SDPA(q[:, :, :3], q, q), atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_R4_forward_bars_of_the_original(dtype):
    q, k, v = operands(1, 8, 256, 64, dtype=dtype)
    reference = SDPA(q.float(), k.float(), v.float())
    ft.enable(strict=True)
    bar = 1e-4 if dtype == torch.float32 else 5e-2
    assert float((SDPA(q, k, v).float() - reference).abs().max()) <= bar


@pytest.mark.parametrize("tiles", [1, 63, 64, 65, 128, 200])
def test_R6_causal_training_over_several_tilings(tiles):
    q, k, v = operands(1, 2, tiles, 32)
    ft.enable(strict=True)
    assert_attention_by_rule(lambda *t: SDPA(*t, is_causal=True), q, k, v, is_causal=True)


@pytest.mark.parametrize(("q_len", "kv_len"), [(5, 9), (9, 5)])
def test_R6_causal_is_anchored_at_the_top_left(q_len, kv_len):
    q, k, v = operands(q_len=q_len, kv_len=kv_len)
    reference = SDPA(q, k, v, is_causal=True)
    ft.enable(strict=True)
    assert torch.allclose(SDPA(q, k, v, is_causal=True), reference, atol=1e-6)
    assert calls_of_ours()[0] == 1


def views_of_a_projection(layout):
    torch.manual_seed(0)
    if layout == "bshd":
        return [torch.randn(2, 33, 4, 16).transpose(1, 2) for _ in range(3)]
    packed = torch.randn(2, 33, 3, 4, 16)
    return [t.transpose(1, 2) for t in packed.unbind(2)]


@pytest.mark.parametrize("layout", ["bshd", "packed_qkv"])
def test_R7_views_are_read_in_place_and_equal_contiguous_bit_for_bit(layout):
    q, k, v = views_of_a_projection(layout)
    ft.enable(strict=True)
    out = SDPA(q, k, v)
    assert torch.equal(out, SDPA(*(t.contiguous() for t in (q, k, v))))
    assert fovea.stats()["staged_copies"] == 0


@pytest.mark.parametrize("layout", ["bshd", "packed_qkv"])
def test_R7_no_copies_are_allocated(layout):
    q, k, v = views_of_a_projection(layout)
    ft.enable(strict=True)
    SDPA(q, k, v)
    with torch.profiler.profile(profile_memory=True) as profile:
        out = SDPA(q, k, v)
    allocated = sum(max(0, e.self_cpu_memory_usage) for e in profile.events())
    assert allocated == out.nbytes


def test_outputs_follow_the_memory_of_q_and_gradients_that_of_their_inputs():
    q, k, v = (t.detach().requires_grad_() for t in views_of_a_projection("packed_qkv"))
    ft.enable(strict=True)
    out = SDPA(q, k, v)
    assert out.transpose(1, 2).is_contiguous()
    for gradient in gradients(out, (q, k, v), torch.ones_like(out)):
        assert gradient.transpose(1, 2).is_contiguous()
    contiguous = operands()
    assert SDPA(*contiguous).is_contiguous()


def test_an_upstream_gradient_of_any_strides():
    q, k, v = operands(requires_grad=True)
    ft.enable(strict=True)
    expanded = gradients(SDPA(q, k, v), (q, k, v), torch.ones(()).expand(2, 4, 33, 16))
    dense = gradients(SDPA(q, k, v), (q, k, v), torch.ones(2, 4, 33, 16))
    for a, b in zip(expanded, dense):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_R12_enable_gqa_is_served(kv_heads):
    q, k, v = operands(q_heads=4, kv_heads=kv_heads)
    ft.enable(strict=True)
    assert_attention_by_rule(lambda *t: SDPA(*t, enable_gqa=True), q, k, v)
    assert calls_of_ours() == (1, 1)


def test_heads_that_differ_without_enable_gqa_are_not_gqa():
    q, k, v = operands(q_heads=4, kv_heads=2)
    with pytest.raises(RuntimeError) as native:
        SDPA(q, k, v)
    ft.enable()
    with pytest.raises(RuntimeError) as ours:
        SDPA(q, k, v)
    assert str(native.value) == str(ours.value) and calls_of_ours() == (0, 0)


def test_a_mask_with_is_causal_raises():
    q, k, v = operands()
    ft.enable()
    with pytest.raises(RuntimeError, match="is_causal"):
        SDPA(q, k, v, attn_mask=torch.ones(33, 33, dtype=torch.bool), is_causal=True)


STILL_VALID = {
    "f64": lambda q, k, v: SDPA(q.double(), k.double(), v.double()),
    "2D": lambda q, k, v: SDPA(q[0, 0], k[0, 0], v[0, 0]),
    "3D": lambda q, k, v: SDPA(q[0], k[0], v[0]),
    "5D": lambda q, k, v: SDPA(q[None], k[None], v[None]),
    "broadcast_batch": lambda q, k, v: SDPA(q, k[:1], v[:1]),
    "broadcast_heads": lambda q, k, v: SDPA(q, k[:, :1], v[:, :1]),
    "vmap": lambda q, k, v: torch.vmap(SDPA)(q[None], k[None], v[None]),
    "func_grad": lambda q, k, v: torch.func.grad(lambda x: SDPA(x, k, v).sum())(q),
    "sdpa_kernel": lambda q, k, v: _with_math(q, k, v),
    "nan_scale": lambda q, k, v: SDPA(q, k, v, scale=float("inf")),
    "subclass": lambda q, k, v: SDPA(q.as_subclass(_Subclass), k, v),
    "head_dim_above_512": lambda q, k, v: SDPA(*(t.repeat(1, 1, 1, 40) for t in (q, k, v))),
}


class _Subclass(torch.Tensor):
    pass


def _with_math(q, k, v):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        return SDPA(q, k, v)


@pytest.mark.parametrize("name", STILL_VALID)
def test_every_call_valid_before_stays_valid_delegated_and_counted(name):
    q, k, v = operands()
    before = STILL_VALID[name](q, k, v)
    ft.enable()
    after = STILL_VALID[name](q, k, v)
    assert torch.equal(before, after) or bool(before.isnan().all() and after.isnan().all())
    assert sum(delegated().values()) >= 1 or name == "vmap"  # which never reaches the operator
    assert calls_of_ours() == (0, 0)


# Operands of the kind of plain ones before, which are served without looking at all of them again.
LIKE_AN_EARLIER_CALL = {
    **{name: STILL_VALID[name] for name in ("func_grad", "sdpa_kernel", "subclass")},
    "negated": lambda q, k, v: SDPA(torch.complex(0 * q, -q).conj().imag, k, v),
    "zero": lambda q, k, v: SDPA(q, k, torch._efficientzerotensor(tuple(v.shape))),
    "forward_mode": lambda q, k, v: _with_tangent(q, k, v),
}


def _with_tangent(q, k, v):
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        try:
            return SDPA(dual, k, v).detach()
        except NotImplementedError as error:  # PyTorch's kernels have no such derivative
            assert "forward AD" in str(error)
            return torch.zeros(1)


@pytest.mark.parametrize("name", LIKE_AN_EARLIER_CALL)
def test_a_call_like_an_earlier_one_is_looked_at_all_the_same(name):
    q, k, v = operands()
    expected = LIKE_AN_EARLIER_CALL[name](q, k, v)
    ft.enable()
    SDPA(q, k, v)
    SDPA(q, k, v)
    assert torch.equal(LIKE_AN_EARLIER_CALL[name](q, k, v), expected)
    assert calls_of_ours() == (2, 0) and sum(delegated().values()) == 1


def test_strict_raises_instead_of_delegating():
    q, k, v = operands()
    ft.enable(strict=True)
    with pytest.raises(NotImplementedError, match=r"strict: .* dtype torch.float64; got q=\(2, 4"):
        SDPA(q.double(), k.double(), v.double())
    assert ft.stats()["delegated"] == 0


def test_gradcheck_passes_while_enabled():
    q, k, v = (t.double().requires_grad_() for t in operands(1, 2, 4, 3))
    ft.enable()
    assert torch.autograd.gradcheck(SDPA, (q, k, v))
    assert torch.autograd.gradgradcheck(_with_math, (q, k, v))


def test_forward_mode_derivatives_are_pytorchs():
    from torch.autograd import forward_ad

    q, k, v = operands()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        expected = forward_ad.unpack_dual(_with_math(dual, k, v)).tangent
        ft.enable()
        assert torch.equal(forward_ad.unpack_dual(_with_math(dual, k, v)).tangent, expected)
        with pytest.raises(NotImplementedError, match="forward AD"):
            SDPA(dual, k, v)  # PyTorch's own answer, not a tangent dropped in silence
    assert delegated()["forward-mode derivatives"] == 2


def test_double_backward_is_refused_clearly():
    q, k, v = operands(requires_grad=True)
    ft.enable()
    (first,) = torch.autograd.grad(SDPA(q, k, v).square().sum(), q, create_graph=True)
    assert torch.isfinite(first).all()
    with pytest.raises(NotImplementedError, match="no second derivative"):
        first.sum().backward()


def test_nested_tensors_and_multihead_attention_work_while_enabled():
    ft.enable()
    layer = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    x = torch.randn(2, 5, 16)
    enabled = layer(x, x, x, need_weights=False)[0]
    assert calls_of_ours()[0] == 1
    ft.disable()
    assert torch.allclose(layer(x, x, x, need_weights=False)[0], enabled, atol=1e-6)


def test_R26_growing_sequences_use_no_stale_plan():
    ft.enable(strict=True)
    for length in (512, 1024, 512):
        q, k, v = operands(1, 2, length, 32, seed=length)
        out = SDPA(q, k, v)
        ft.disable()
        assert torch.allclose(out, SDPA(q, k, v), atol=1e-5)
        ft.enable(strict=True)


@pytest.mark.parametrize("shape", [(0, 4, 33, 16), (2, 4, 0, 16)])
def test_empty_batches_and_queries(shape):
    q, k, v = operands()
    q = torch.empty(shape)
    k, v = k[: shape[0]], v[: shape[0]]
    ft.enable(strict=True)
    assert SDPA(q, k, v).shape == shape


def test_no_keys_give_zero():
    q, k, v = operands()
    ft.enable(strict=True)
    assert torch.equal(SDPA(q, k[:, :, :0], v[:, :, :0]), torch.zeros_like(q))


def test_expanded_and_permuted_operands():
    q, k, v = operands(batch=1)
    ft.enable(strict=True)
    expanded = SDPA(q.expand(3, -1, -1, -1), k.expand(3, -1, -1, -1), v.expand(3, -1, -1, -1))
    assert torch.equal(expanded[2], SDPA(q, k, v)[0])
    permuted = [t.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0) for t in (q, k, v)]
    assert torch.allclose(SDPA(*permuted), SDPA(q, k, v), atol=1e-6)


def test_threads_share_the_route_and_the_counters_are_exact():
    ft.enable(strict=True)
    q, k, v = operands(1, 1, 8, 8)

    def work():
        for _ in range(50):
            SDPA(q, k, v)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ft.stats()["calls"] == 200 and calls_of_ours()[0] == 200


def test_checkpointing_recomputes_the_same():
    from torch.utils.checkpoint import checkpoint

    q, k, v = operands(requires_grad=True)
    ft.enable(strict=True)
    dout = torch.randn(2, 4, 33, 16)
    plain = gradients(SDPA(q, k, v), (q, k, v), dout)
    for reentrant in (False, True):
        out = checkpoint(SDPA, q, k, v, use_reentrant=reentrant)
        for t in (q, k, v):
            t.grad = None
        out.backward(dout)
        for t, expected in zip((q, k, v), plain):
            assert torch.equal(t.grad, expected)


def test_saved_tensor_hooks_may_change_strides():
    q, k, v = operands(requires_grad=True)
    ft.enable(strict=True)
    dout = torch.randn(2, 4, 33, 16)
    plain = gradients(SDPA(q, k, v), (q, k, v), dout)

    def unpack(t):
        return t.transpose(-1, -2).contiguous().transpose(-1, -2)

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        out = SDPA(q, k, v)
    for found, expected in zip(gradients(out, (q, k, v), dout), plain):
        assert torch.allclose(found, expected, atol=1e-6)


def test_dispatch_modes_see_our_operator():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    q, k, v = operands(requires_grad=True)
    ft.enable(strict=True)
    with Watch():
        out = SDPA(q, k, v)
    assert "fovea.attention.default" in seen
    reference = SDPA(q, k, v)
    dout = torch.randn_like(out)
    for a, b in zip(gradients(out, (q, k, v), dout), gradients(reference, (q, k, v), dout)):
        assert torch.equal(a, b)


def test_only_the_gradients_that_are_wanted():
    q, k, v = operands()
    k.requires_grad_()
    ft.enable(strict=True)
    SDPA(q, k, v).sum().backward()
    assert q.grad is None and v.grad is None and k.grad is not None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [600, pytest.param(4096, marks=pytest.mark.slow)])
def test_V1_one_head_of_512_as_in_a_vae(dtype, length):
    q, k, v = operands(1, 1, length, 512, dtype=dtype)
    ft.enable(strict=True)
    assert_attention_by_rule(SDPA, q, k, v)
    assert calls_of_ours() == (1, 1)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            lambda q, k, v: (q.to(torch.complex64), k, v),
            ValueError,
            "q=torch.complex64, k=f32, v=f32",
        ),
        (lambda q, k, v: (q, k.int(), v), ValueError, "k=torch.int32"),
        (lambda q, k, v: (q, k, v.to("meta")), ValueError, "v: .*meta"),
        (lambda q, k, v: (q[0], k, v), ValueError, "q must .*4"),
        (lambda q, k, v: (q, k[..., :8], v), ValueError, "head_dim.*16.*8"),
        (lambda q, k, v: (q, k, v[:, :, :5]), ValueError, "33.*5"),
        (
            lambda q, k, v: tuple(t.to(torch.complex64) for t in (q, k, v)),
            TypeError,
            "q: .*complex64",
        ),
        (
            lambda q, k, v: (q, k.to_sparse(), v),
            ValueError,
            "k: a dense tensor; got torch.sparse_coo",
        ),
        (lambda q, k, v: (q, None, v), TypeError, "k: a tensor or a list of them; got None"),
    ],
)
def test_bad_operands_of_our_own_function_are_named(change, error, message):
    with pytest.raises(error, match=message):
        ft.attention(*change(*operands()))


def test_negated_views_are_read_with_their_sign():
    q, k, v = operands()
    negated = torch.complex(torch.zeros_like(q), -q).conj().imag
    assert negated.is_neg()
    assert torch.equal(ft.attention(negated, k, v), ft.attention(q, k, v))
    expected = SDPA(negated, k, v)
    ft.enable()
    assert torch.equal(SDPA(negated, k, v), expected)
    assert delegated() == {"negated views": 1}


def test_zero_tensors_and_no_heads_stay_valid():
    ft.enable()
    zeros = torch._efficientzerotensor((1, 2, 5, 8))
    q = torch.randn(1, 2, 5, 8)
    assert torch.equal(SDPA(q, q, zeros), torch.zeros(1, 2, 5, 8))
    assert delegated() == {"zero tensors": 1}
    none = torch.empty(2, 0, 4, 8)
    assert SDPA(none, none, none).shape == (2, 0, 4, 8)
    assert delegated()["no heads"] == 1


def test_counters_made_in_inference_mode_count_outside_of_it():
    from fovea.torch._counts import Counts

    counts, condition = Counts(), torch.tensor(True)
    with torch.inference_mode():
        counts.add_on_device(condition)
    counts.add_on_device(condition)
    assert counts.named("mask_all_true_skipped") == 2
    counts.reset()
    assert counts.named("mask_all_true_skipped") == 0
