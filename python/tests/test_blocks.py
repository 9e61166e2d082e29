"""Blocks of diffusion models: fused attention against eager operations, evaluated and trained.
The blocks are written here (blocks.py); whole models with their own code are not."""

import pytest

torch = pytest.importorskip("torch")

from blocks import MODELS, Block  # noqa: E402

import fovea  # noqa: E402


def streams(model, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    lengths = (7, 20) if model.double else (27,)
    return [torch.randn(2, n, 48, generator=generator, dtype=dtype) for n in lengths]


def losses_and_gradients(block, inputs, fused):
    inputs = [x.clone().requires_grad_() for x in inputs]
    out = block(inputs, fused)
    loss = sum(x.double().square().mean() for x in out)
    return out, torch.autograd.grad(loss, [*inputs, *block.parameters()])


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_R35_A8_fused_equals_eager_in_f64_terms(model):
    block = Block(model)
    out, gradients = losses_and_gradients(block, streams(model), True)
    exact_block = Block(model).double()
    exact_block.load_state_dict({n: p.double() for n, p in block.state_dict().items()})
    exact, exact_gradients = losses_and_gradients(
        exact_block, [x.double() for x in streams(model)], False
    )
    for found, truth in zip([*out, *gradients], [*exact, *exact_gradients]):
        assert found.dtype == torch.float32
        assert float((found - truth).norm()) <= 1e-5 * float(truth.norm()) + 1e-6
    assert fovea.stats()["fused_prologues"] == 2  # one forward, one backward: nothing was eager


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_R35_evaluation_under_autocast_with_norms_in_f32(model):
    block = Block(model)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        fused, eager = (block(streams(model), how) for how in (True, False))
    for a, b in zip(fused, eager):
        assert a.dtype == b.dtype
        assert float((a.float() - b.float()).norm()) <= 2e-2 * float(b.float().norm())


@pytest.mark.parametrize("compiled", [False, True])
def test_R35_A8_training_steps_go_down_alike(compiled):
    model = MODELS[0]
    curves = []
    for fused in (True, False):
        block = Block(model)
        step = torch.compile(block, backend="aot_eager") if compiled and fused else block
        optimizer = torch.optim.SGD(block.parameters(), lr=0.05)
        losses = []
        for _ in range(5):
            loss = sum(x.square().mean() for x in step(streams(model), fused))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        curves.append(losses)
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)
    assert curves[0][-1] < curves[0][0]
