"""Masks of scaled_dot_product_attention: both kinds, every broadcast, in place, skipped if true."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from reference import assert_attention_by_rule, formula, gradients, operands  # noqa: E402

import fovea  # noqa: E402
import fovea.torch as ft  # noqa: E402

SDPA = F.scaled_dot_product_attention
SHAPES = [
    (13,),
    (1,),
    (9, 13),
    (1, 13),
    (9, 1),
    (4, 9, 13),
    (4, 1, 1),
    (2, 1, 1, 13),
    (1, 4, 9, 13),
    (2, 4, 9, 13),
    (2, 1, 9, 1),
]


@pytest.fixture(autouse=True)
def routed():
    ft.enable(strict=True)
    yield
    ft.disable()


def masked(mask, dtype=torch.float32):
    q, k, v = operands(q_len=9, kv_len=13, dtype=dtype)
    assert_attention_by_rule(lambda *t: SDPA(*t, attn_mask=mask), q, k, v, mask=mask)


@pytest.mark.parametrize("shape", SHAPES)
def test_R8_bool_masks(shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.6
    masked(mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_R8_additive_masks(shape, dtype):
    mask = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    masked(mask, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_R8_an_f32_mask_beside_16_bit_operands(dtype):
    masked(torch.randn(9, 13, generator=torch.Generator().manual_seed(1)), dtype)


def test_R8_strided_masks():
    generator = torch.Generator().manual_seed(1)
    masked(torch.randn(13, 9, generator=generator).t())
    masked(torch.randn(9, 26, generator=generator)[:, ::2])
    masked((torch.randn(9, 1, generator=generator) > 0).expand(2, 4, 9, 13))


def test_R8_zero_and_one_in_floats_is_additive():
    q, k, v = operands(q_len=9, kv_len=13)
    mask = (torch.rand(9, 13, generator=torch.Generator().manual_seed(1)) < 0.5).float()
    out = SDPA(q, k, v, attn_mask=mask)
    assert torch.allclose(out.double(), formula(q, k, v, mask), atol=1e-6)
    assert not torch.allclose(out.double(), formula(q, k, v, mask.bool()), atol=1e-2)


def test_R10_an_all_true_mask_is_skipped_and_counted_one_false_is_not():
    q, k, v = operands(q_len=9, kv_len=13)
    mask = torch.ones(9, 13, dtype=torch.bool)
    assert torch.equal(SDPA(q, k, v, attn_mask=mask), SDPA(q, k, v))
    assert ft.stats()["masks_skipped"] == 1
    assert torch.equal(SDPA(q, k, v, attn_mask=mask.expand(2, 4, 9, 13)), SDPA(q, k, v))
    assert ft.stats()["masks_skipped"] == 2
    for row in (8, 4, 0):
        mask = torch.ones(9, 13, dtype=torch.bool)
        mask[row, 12] = False
        out = SDPA(q, k, v, attn_mask=mask)
        assert ft.stats()["masks_skipped"] == 2
        assert torch.allclose(out.double(), formula(q, k, v, mask), atol=1e-6)


@pytest.mark.parametrize("additive", [False, True])
def test_R11_a_row_that_sees_nothing_is_zero_with_gradients_zero(additive):
    q, k, v = operands(q_len=9, kv_len=13, requires_grad=True)
    mask = torch.ones(9, 13, dtype=torch.bool)
    mask[4] = False
    if additive:
        mask = torch.zeros(9, 13).masked_fill(~mask, -torch.inf)
    out = SDPA(q, k, v, attn_mask=mask)
    dq, dk, dv = gradients(out, (q, k, v), torch.ones_like(out))
    assert torch.equal(out[:, :, 4], torch.zeros(2, 4, 16))
    assert torch.equal(dq[:, :, 4], torch.zeros(2, 4, 16))
    assert all(torch.isfinite(t).all() for t in (dq, dk, dv))


def test_a_row_of_the_smallest_float_is_the_mean():
    q, k, v = operands(q_len=9, kv_len=13)
    mask = torch.zeros(9, 13)
    mask[3] = torch.finfo(torch.float32).min
    out = SDPA(q, k, v, attn_mask=mask)
    assert torch.allclose(out[:, :, 3], v.mean(2), atol=1e-5)


@pytest.mark.parametrize("shape", [(9, 13), (2, 1, 9, 13), (4, 1, 13), (1, 4, 9, 1)])
def test_the_gradient_of_an_additive_mask(shape):
    q, k, v = operands(q_len=9, kv_len=13)
    mask = torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
    out = SDPA(q, k, v, attn_mask=mask)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    exact = formula(q, k, v, mask)
    (expected,) = torch.autograd.grad(exact, mask, dout.double())
    (found,) = torch.autograd.grad(out, mask, dout)
    assert found.shape == mask.shape and torch.allclose(found, expected, atol=1e-5)


def test_bad_masks_are_left_to_pytorch_which_refuses_them():
    ft.enable()
    q, k, v = operands(q_len=9, kv_len=13)
    for mask in (
        torch.ones(9, 12),
        torch.ones(9, 13, dtype=torch.int32),
        torch.ones(3, 4, 9, 13),
        torch.ones(9, 13, dtype=torch.float64),
    ):
        with pytest.raises(RuntimeError):
            SDPA(q, k, v, attn_mask=mask)
    assert fovea.stats()["forward_calls"] == 0


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(9, 12), "mask"),
        (torch.ones(9, 13, dtype=torch.int32), "mask"),
        (torch.ones(9, 13).to(torch.complex64), "mask.*complex64"),
    ],
)
def test_bad_masks_of_our_own_function_are_named(mask, message):
    q, k, v = operands(q_len=9, kv_len=13)
    with pytest.raises((ValueError, TypeError), match=message):
        ft.attention(q, k, v, mask=mask)
