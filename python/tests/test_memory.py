"""Peak memory: linear in the sequence, nothing expanded, nothing copied. Each measurement is a
process of its own."""

import json
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

HEAD_DIM = 64


def peak_growth(setup, step):
    """Bytes by which the peak of a process grows from `setup` to the end of `step`."""
    code = textwrap.dedent("""
        import json, resource, sys, torch, fovea.torch as ft
        torch.manual_seed(0)
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        warm = [torch.randn(1, 1, 64, 64, requires_grad=True) for _ in range(3)]
        ft.attention(*warm, mask=torch.ones(64, 64, dtype=torch.bool)).sum().backward()
        setup, step = json.loads(sys.argv[1])
        exec(setup)
        before = peak()
        exec(step)
        print(peak() - before)
    """)
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps([setup, step])],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def inputs(length, dtype="float32"):
    return (
        f"q, k, v = (torch.randn(1, 1, {length}, {HEAD_DIM}).to(torch.{dtype})"
        ".requires_grad_() for _ in range(3))"
    )


STEP = "ft.attention(q, k, v).square().mean().backward()"
SLACK = 4 << 20  # threads' stacks and scratch, and the allocator's own


@pytest.mark.slow
@pytest.mark.parametrize("length", [1536, 12_288, pytest.param(32_768, marks=pytest.mark.slow)])
def test_R29_memory_of_a_training_step_is_linear(length):
    """At most nine tensors of f32's size with the inputs, lse and delta; the step itself brings
    out, dout, square's, and dq, dk, dv: six."""
    tensor = length * HEAD_DIM * 4
    assert peak_growth(inputs(length), STEP) <= 6 * tensor + 2 * length * 4 + SLACK


@pytest.mark.slow
def test_R29_16_bit_training_needs_one_f32_tensor_more():
    length = 16_384
    tensor = length * HEAD_DIM * 2
    growth = peak_growth(inputs(length, "bfloat16"), STEP)
    assert growth <= 6 * tensor + length * HEAD_DIM * 4 + 2 * length * 4 + SLACK


@pytest.mark.slow
def test_R9_a_mask_is_never_expanded():
    length, batch, heads = 1024, 4, 8
    setup = (
        f"q, k, v = (torch.randn({batch}, {heads}, {length}, 64) for _ in range(3));"
        f"mask = torch.rand({batch}, 1, 1, {length}) < 0.5"
    )
    out = batch * heads * length * 64 * 4
    growth = peak_growth(setup, "ft.attention(q, k, v, mask=mask)")
    assert growth <= out + SLACK < batch * heads * length * length


@pytest.mark.slow
def test_R18_rope_brings_no_tensor_of_the_size_of_q():
    length = 32_768
    setup = (
        f"q, k, v = (torch.randn(1, 4, {length}, 64).bfloat16() for _ in range(3));"
        f"a = torch.randn({length}, 32); cos, sin = a.cos(), a.sin(); q = q[:, :, :256]"
    )
    growth = peak_growth(setup, "ft.rope_attention(q, k, v, cos, sin)")
    assert growth < 4 * length * 64 * 2  # no rotated k, not even in 16 bits


@pytest.mark.slow
def test_V5_the_probe_prints_both_paths_and_one_training_step():
    done = subprocess.run(
        [sys.executable, "-m", "fovea", "memory", "--lengths", "512", "3072"],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    rows = [line.split() for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == ["512", "3072"]
    fused, unfused = float(rows[1][1]), float(rows[1][3])
    assert 4 * fused < unfused
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "fovea",
            "memory",
            "--train",
            "--heads",
            "2",
            "--head-dim",
            "32",
            "--lengths",
            "2048",
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    row = done.stdout.splitlines()[-1].split()
    assert float(row[1]) < float(row[3])
