"""Dropout through scaled_dot_product_attention: PyTorch's generator, our bits."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from reference import gradients, operands  # noqa: E402

import fovea  # noqa: E402
import fovea.torch as ft  # noqa: E402

SDPA = F.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def routed():
    ft.enable(strict=True)
    yield
    ft.disable()


def test_R12_dropout_is_served_and_consumes_the_generator():
    q, k, v = operands()
    torch.manual_seed(5)
    first, second = (SDPA(q, k, v, dropout_p=0.3) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(SDPA(q, k, v, dropout_p=0.3), first)
    assert ft.stats()["delegated"] == 0 and fovea.stats()["forward_calls"] == 3


def test_R12_the_mean_over_seeds_is_attention_without_dropout():
    q, k, v = operands(1, 2, 16, 8)
    torch.manual_seed(0)
    mean = torch.stack([SDPA(q, k, v, dropout_p=0.4) for _ in range(3000)]).mean(0)
    assert float((mean - SDPA(q, k, v)).abs().max()) < 0.08


def test_R12_forward_and_gradients_drop_the_same_weights():
    q, k, _ = operands(1, 2, 16, 16, requires_grad=True)
    v = torch.eye(16).expand(1, 2, 16, 16).clone().requires_grad_()  # out is P with its zeros
    torch.manual_seed(1)
    out = SDPA(q, k, v, dropout_p=0.5)
    dropped = out == 0
    assert 0.3 < float(dropped.float().mean()) < 0.7
    weights = torch.softmax(q @ k.transpose(-2, -1) / 4, -1)
    assert torch.allclose(out[~dropped], 2 * weights[~dropped], rtol=1e-4)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
    expected = gradients(weights * 2 * (~dropped) @ v, (q, k, v), dout)
    for found, truth in zip(gradients(out, (q, k, v), dout), expected):
        assert torch.allclose(found, truth, atol=1e-4)


def test_all_dropped_is_zero_and_bad_probabilities_raise_as_before():
    q, k, v = operands()
    assert torch.equal(SDPA(q, k, v, dropout_p=1.0), torch.zeros_like(q))
    ft.enable()
    with pytest.raises(RuntimeError, match="dropout"):
        SDPA(q, k, v, dropout_p=1.5)


def test_checkpointing_with_dropout_recomputes_the_same_mask():
    from torch.utils.checkpoint import checkpoint

    q, k, v = operands(requires_grad=True)
    dout = torch.randn(2, 4, 33, 16)

    def attend(*t):
        return SDPA(*t, dropout_p=0.3)

    torch.manual_seed(2)
    plain = gradients(attend(q, k, v), (q, k, v), dout)
    torch.manual_seed(2)
    checkpointed = gradients(checkpoint(attend, q, k, v, use_reentrant=False), (q, k, v), dout)
    for a, b in zip(plain, checkpointed):
        assert torch.equal(a, b)


def test_a_seed_tensor_of_the_callers():
    q, k, v = operands()
    seed = torch.tensor([42])
    first = ft.attention(q, k, v, dropout_p=0.3, dropout_seed=seed)
    assert torch.equal(first, ft.attention(q, k, v, dropout_p=0.3, dropout_seed=seed))
    with pytest.raises(ValueError, match="seed"):
        ft.attention(q, k, v, dropout_p=0.3, dropout_seed=torch.tensor([1, 2]))
