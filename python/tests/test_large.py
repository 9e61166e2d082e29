"""Sizes at which the H*S^2 approach dies. Rows are sampled, since the formulas are slow there."""

import math

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from reference import relative_error  # noqa: E402

import fovea.torch as ft  # noqa: E402


@pytest.fixture(autouse=True)
def routed():
    ft.enable(strict=True)
    yield
    ft.disable()


def operands(heads, length, head_dim):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, heads, length, head_dim, generator=generator) for _ in range(3)]


def exact_rows(q, k, v, head, rows):
    s = q[0, head, rows].double() @ k[0, head].double().T / math.sqrt(q.shape[-1])
    return torch.softmax(s, -1) @ v[0, head].double()


@pytest.mark.slow
@pytest.mark.parametrize("length", [10_240, 24_576])
def test_R31_lengths_complete_forward_and_backward(length):
    q, k, v = (t.requires_grad_() for t in operands(1, length, 32))
    out = F.scaled_dot_product_attention(q, k, v)
    rows = torch.tensor([0, 1, length // 2, length - 1])
    exact = exact_rows(q, k, v, 0, rows)
    assert float((out[0, 0, rows] - exact).abs().max()) <= 1e-6
    chosen = torch.zeros_like(out)
    chosen[0, 0, rows] = 1
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), chosen)
    truth = torch.autograd.grad(exact.sum(), (q, k, v))
    for name, found, expected in zip("qkv", (dq, dk, dv), truth):
        assert relative_error(found, expected) < 1e-5, name


@pytest.mark.slow
def test_R31_offsets_beyond_32_bits():
    """K and V whose rows lie 2^27 elements apart in one buffer: the last one beyond 2^32."""
    rows, stride = 34, 1 << 27
    buffer = torch.empty(rows * stride, dtype=torch.float16)
    k = buffer.as_strided((1, 1, rows, 16), (0, 0, stride, 1))
    v = buffer[16:].as_strided((1, 1, rows, 16), (0, 0, stride, 1))
    small = torch.randn(2, 1, 1, rows, 16).half()
    k.copy_(small[0])
    v.copy_(small[1])
    q = torch.randn(1, 1, 20, 16).half()
    out = F.scaled_dot_product_attention(q, k, v)
    assert torch.equal(out, F.scaled_dot_product_attention(q, small[0], small[1]))


@pytest.mark.slow
def test_R30_the_flux_shape_in_f32_forward_loss_and_gradients(request):
    """24 heads of 6144 x 128 need a minute or more of a CPU; --flux-heads says how many."""
    heads, length, head_dim = request.config.getoption("--flux-heads"), 6144, 128
    q, k, v = (t.requires_grad_() for t in operands(heads, length, head_dim))
    out = F.scaled_dot_product_attention(q, k, v)
    rows = torch.tensor([0, 3000, length - 1])
    worst = max(
        float((out[0, h, rows] - exact_rows(q, k, v, h, rows)).abs().max()) for h in range(heads)
    )
    assert worst <= 1e-6
    loss = out.double().square().mean()
    leaves = [t.detach()[:, -1:].double().requires_grad_() for t in (q, k, v)]
    gradients = torch.autograd.grad(loss, (q, k, v))
    exact_loss, exact_gradients = _exact_head(leaves, heads)
    last = out[0, -1].double().square().sum() / out.numel()
    assert abs(float(last - exact_loss)) <= 1e-7 * float(exact_loss)
    for found, exact in zip(gradients, exact_gradients):
        assert relative_error(found[:, -1:], exact) <= 5e-6


def _exact_head(leaves, heads):
    """One head's share of the loss and its gradients in f64, by blocks of rows."""
    q, k, v = leaves
    total, gradients = 0.0, [torch.zeros_like(t) for t in leaves]
    count = q.shape[2] * q.shape[3] * heads
    for rows in torch.arange(q.shape[2]).split(768):
        out = torch.softmax(q[:, :, rows] @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v
        loss = out.square().sum() / count
        total += float(loss)
        for sum_of, part in zip(gradients, torch.autograd.grad(loss, leaves)):
            sum_of += part
    return torch.tensor(total), gradients
