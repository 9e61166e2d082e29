"""What PyTorch offers around a call, while it is Fovea's: switches, counters, batched gradients."""

import pytest

torch = pytest.importorskip("torch")

from reference import operands  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import fovea  # noqa: E402
import fovea.torch as ft  # noqa: E402
from fovea.torch import _call  # noqa: E402

SDPA = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture
def computed(monkeypatch):
    """Whether each run was asked to be repeatable."""
    asked, calls = [], {}

    def spy(name):
        run = getattr(_call._native, name)

        def recorded(config, *rest):
            asked.append(calls[config])
            return run(config, *rest)

        return recorded

    def native(settings):
        config = made(settings)
        calls[config] = settings.deterministic
        return config

    made = _call.native
    native_module = type("Native", (), {n: staticmethod(spy(n)) for n in ("forward", "backward")})
    monkeypatch.setattr(_call, "native", native)
    monkeypatch.setattr(_call, "_native", native_module)
    _call.call_of.cache_clear()
    yield asked
    _call.call_of.cache_clear()


@pytest.fixture
def deterministic():
    yield torch.use_deterministic_algorithms
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("routed", [True, False])
def test_use_deterministic_algorithms_is_asked_at_each_run(computed, deterministic, routed):
    q, k, v = operands(requires_grad=True)
    ft.enable(strict=True)
    call = SDPA if routed else ft.attention
    call(q, k, v).sum().backward()
    deterministic(True)
    call(q, k, v).sum().backward()
    out = call(q, k, v)
    deterministic(False)
    out.sum().backward()
    assert computed == [False, False, True, True, True, False]


def test_deterministic_option_needs_no_switch(computed):
    q, k, v = operands(requires_grad=True)
    ft.attention(q, k, v, deterministic=True).sum().backward()
    assert computed == [True, True]


def flops_of(function, inputs):
    with FlopCounterMode(display=False) as mode:
        out = function(*inputs)
        out = out if isinstance(out, torch.Tensor) else torch.cat(out, 2)
        torch.autograd.grad(out.sum(), inputs)
    return mode.get_total_flops()


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("v_head_dim", [16, 24])
def test_served_calls_count_the_same_flops_as_pytorchs(kv_heads, v_head_dim):
    # Its flash kernel, the one whose formula is meant, takes one head_dim; dense products are
    # the same number for others.
    inputs = operands(q_heads=4, kv_heads=kv_heads, kv_len=20, requires_grad=True)
    if v_head_dim != 16:
        inputs[2] = torch.randn(2, kv_heads, 20, v_head_dim, requires_grad=True)
    counted = torch.utils.flop_counter
    shapes = [t.shape for t in inputs]
    expected = counted.sdpa_flop_count(*shapes) + counted.sdpa_backward_flop_count(
        (*shapes[0][:3], v_head_dim), *shapes
    )
    ft.enable(strict=True)
    found = flops_of(lambda *t: SDPA(*t, enable_gqa=True), inputs)
    assert found == expected and fovea.stats()["backward_calls"] == 1
    ft.disable()
    if v_head_dim == 16:
        assert flops_of(lambda *t: SDPA(*t, enable_gqa=True), inputs) == expected


def test_flops_of_segments_and_packed_sequences():
    q, k, v = operands(1, requires_grad=True)
    whole = flops_of(ft.attention, (q, k, v))
    halves = flops_of(
        lambda *t: ft.attention(*([x[:, :, :10], x[:, :, 10:]] for x in t)), (q, k, v)
    )
    assert halves == whole
    q, k, v = (torch.randn(43, 4, 16) for _ in range(3))
    offsets = torch.tensor([0, 33, 43])
    with FlopCounterMode(display=False) as mode:
        ft.varlen_attention(q, k, v, offsets, offsets, 33, 33)
    assert mode.get_total_flops() == 2 * 4 * (33 * 33 + 10 * 10) * (16 + 16)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("how", ["engine", "jacobian", "vmap", "vmap_of_vmap", "as_operator"])
@pytest.mark.parametrize("masked", [False, True])
def test_batched_gradients_are_those_of_each_sample(how, masked):
    inputs = operands(1, 2, 5, 8, requires_grad=True)
    mask = torch.randn(5, 5, requires_grad=True) if masked else None
    dout = torch.randn(2, 3, 1, 2, 5, 8)
    wanted = [*inputs, mask] if masked else inputs

    def attend(*tensors):
        return SDPA(*tensors[:3], attn_mask=mask)

    def gradients():
        if how == "jacobian":
            return torch.autograd.functional.jacobian(attend, tuple(inputs), vectorize=True)
        if how == "as_operator":
            with FlopCounterMode(display=False):
                out = attend(*inputs)
        else:
            out = attend(*inputs)
        if how in ("engine", "as_operator"):
            return torch.autograd.grad(out, wanted, dout[0], is_grads_batched=True)

        def one(upstream):
            return torch.autograd.grad(out, wanted, upstream, retain_graph=True)

        if how == "vmap":
            return torch.vmap(one)(dout[0])
        return torch.vmap(torch.vmap(one))(dout)

    expected = gradients()
    ft.enable(strict=True)
    found = gradients()
    assert (
        fovea.stats()["backward_calls"]
        == {
            "engine": 3,
            "as_operator": 3,
            "vmap": 3,
            "vmap_of_vmap": 6,
            "jacobian": 80,
        }[how]
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_batched_gradients_of_lse_and_of_some_segments():
    q, k, v = operands(1, 2, 5, 8, requires_grad=True)
    dlse = torch.randn(3, 1, 2, 5)
    _, lse = ft.attention(q, k, v, return_lse=True)
    together = torch.autograd.grad(lse, (q, k), dlse, retain_graph=True, is_grads_batched=True)
    for n in range(3):
        for batch, one in zip(together, torch.autograd.grad(lse, (q, k), dlse[n], True)):
            assert torch.equal(batch[n], one)
    first, _ = ft.attention([q, q], [k], [v])
    dout = torch.randn(3, 1, 2, 5, 8)
    together = torch.autograd.grad(first, v, dout, retain_graph=True, is_grads_batched=True)[0]
    for n in range(3):
        assert torch.equal(together[n], torch.autograd.grad(first, v, dout[n], True)[0])


def test_batched_second_derivatives_are_refused_as_single_ones_are():
    q, k, v = operands(1, 2, 3, 4, requires_grad=True)
    ft.enable()
    jacobian = torch.autograd.functional.jacobian(
        lambda x: SDPA(x, k, v), q, vectorize=True, create_graph=True
    )
    with pytest.raises(NotImplementedError, match="no second derivative"):
        jacobian.sum().backward()
    out = SDPA(q, k, v)
    with pytest.raises(NotImplementedError, match="no second derivative.*under vmap"):
        torch.vmap(lambda dout: torch.autograd.grad(out, q, dout, create_graph=True))(
            torch.randn(3, 1, 2, 3, 4)
        )
