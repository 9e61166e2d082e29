"""What only a GPU can show. `pytest -m gpu` runs these; without one they skip with the reason."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from reference import assert_attention_by_rule, gradients, operands  # noqa: E402

import fovea  # noqa: E402
import fovea.torch as ft  # noqa: E402

pytestmark = pytest.mark.gpu
SDPA = F.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def routed(gpu):
    ft.enable(strict=True)
    yield
    ft.disable()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}], ids=["full", "causal"])
def test_R3_R5_forward_and_gradients(gpu, dtype, options):
    q, k, v = operands(2, 4, 130, 64, dtype=dtype, device=gpu)
    assert_attention_by_rule(lambda *t: SDPA(*t, **options), q, k, v, **options)
    assert fovea.stats()["forward_calls"] == 1


def test_R2_routed_in_every_mode(gpu):
    q, k, v = operands(dtype=torch.float16, device=gpu, requires_grad=True)
    SDPA(q, k, v).sum().backward()
    with torch.no_grad():
        SDPA(q, k, v)
    with torch.inference_mode():
        SDPA(q, k, v)
    assert fovea.stats()["forward_calls"] == 3


def test_R16_right_after_a_queued_producer_on_a_stream_of_its_own(gpu):
    stream = torch.cuda.Stream()
    q, k, v = operands(1, 8, 1024, 64, dtype=torch.float16, device=gpu)
    expected = SDPA(q * 3, k, v)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        out = SDPA(q * 3, k, v)
    stream.synchronize()
    assert torch.equal(out, expected)


def test_R16_a_call_does_not_wait_for_the_device(gpu):
    q, k, v = operands(1, 8, 1024, 64, dtype=torch.float16, device=gpu, requires_grad=True)
    SDPA(q, k, v).sum().backward()
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    torch.cuda._sleep(500_000_000)
    SDPA(q, k, v).sum().backward()
    done.record()
    assert not done.query()
    torch.cuda.synchronize()


def test_R10_all_true_masks_are_counted_without_waiting(gpu):
    q, k, v = operands(dtype=torch.float16, device=gpu)
    mask = torch.ones(33, 33, dtype=torch.bool, device=gpu)
    SDPA(q, k, v, attn_mask=mask)
    mask[0, 1] = False
    SDPA(q, k, v, attn_mask=mask)
    assert ft.stats()["masks_skipped"] == 1


def test_cuda_graphs_replay_forward_and_backward(gpu):
    q, k, v = operands(1, 4, 256, 64, dtype=torch.float16, device=gpu, requires_grad=True)

    def step():
        return torch.autograd.grad(SDPA(q, k, v).float().square().sum(), (q, k, v))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        q.mul_(0.5)
    graph.replay()
    for found, expected in zip(captured, step()):
        assert torch.equal(found, expected)


def test_a_mask_in_a_graph_is_read_at_each_replay(gpu):
    q, k, v = operands(1, 4, 64, 64, dtype=torch.float16, device=gpu)
    mask = torch.ones(64, 64, dtype=torch.bool, device=gpu)
    SDPA(q, k, v, attn_mask=mask)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = SDPA(q, k, v, attn_mask=mask)
    mask.tril_()
    graph.replay()
    assert torch.equal(out, SDPA(q, k, v, attn_mask=mask))
    assert ft.stats()["masks_skipped"] == 1


def test_dropout_in_a_graph_draws_a_new_mask_at_each_replay(gpu):
    q, k, v = operands(1, 4, 64, 64, dtype=torch.float16, device=gpu)
    SDPA(q, k, v, dropout_p=0.5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = SDPA(q, k, v, dropout_p=0.5)
    graph.replay()
    first = out.clone()
    graph.replay()
    assert not torch.equal(first, out)


def test_dropout_has_the_same_bits_as_on_the_cpu(gpu):
    q, k, v = operands(device=gpu)
    seed = torch.tensor([7])
    ours = ft.attention(q, k, v, dropout_p=0.3, dropout_seed=seed.to(gpu))
    cpu = ft.attention(q.cpu(), k.cpu(), v.cpu(), dropout_p=0.3, dropout_seed=seed)
    assert torch.allclose(ours.cpu(), cpu, atol=1e-4)


def test_mixed_devices_are_refused_with_the_argument(gpu):
    q, k, v = operands(device=gpu)
    with pytest.raises(ValueError, match="k"):
        ft.attention(q, k.cpu(), v)


def test_another_device_than_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    q, k, v = operands(dtype=torch.float16, device="cuda:1")
    assert torch.cuda.current_device() == 0
    assert torch.allclose(SDPA(q, k, v).cpu(), SDPA(q.cpu(), k.cpu(), v.cpu()), atol=2e-2)


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_A1_A6_mixed_dtypes_under_autocast(gpu, low):
    q, k, v = operands(device=gpu)
    q, k, v = q.requires_grad_(), k.requires_grad_(), v.to(low).requires_grad_()
    with torch.autocast("cuda", dtype=low):
        out = SDPA(q, k, v)
        compiled = torch.compile(SDPA, fullgraph=True)(q, k, v)
    assert out.dtype == compiled.dtype == low and torch.equal(out, compiled)
    assert [g.dtype for g in gradients(out, (q, k, v), torch.ones_like(out))] == [
        torch.float32,
        torch.float32,
        low,
    ]


def test_rope_and_norm_fused(gpu):
    q, k, v = operands(2, 4, 130, 64, dtype=torch.bfloat16, device=gpu, requires_grad=True)
    angle = torch.randn(130, 32, device=gpu)
    weight = torch.rand(64, device=gpu).requires_grad_()
    out = ft.qk_norm_rope_attention(q, k, v, weight, weight, angle.cos(), angle.sin())
    cpu = [t.detach().cpu().requires_grad_() for t in (q, k, v, weight)]
    expected = ft.qk_norm_rope_attention(
        *cpu[:3], cpu[3], cpu[3], angle.cos().cpu(), angle.sin().cpu()
    )
    assert float((out.cpu() - expected).float().norm()) < 2e-2 * float(expected.float().norm())
    for a, b in zip(
        gradients(out, (q, k, v, weight), torch.ones_like(out)),
        gradients(expected, cpu, torch.ones_like(expected)),
    ):
        assert float((a.cpu() - b).float().norm()) < 3e-2 * float(b.float().norm())
