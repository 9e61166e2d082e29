"""The memory probe: peak memory of one forward and backward pass against the sequence length, and
of one training step of a FLUX-shaped block. Each measurement is a process of its own, so that the
peak is its own."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

UNFUSED_LIMIT_BYTES = 8 << 30  # scores larger than this are not tried


def main(lengths: list[int], heads: int, head_dim: int, train: bool) -> int:
    """Prints a table; returns the exit status."""
    name = "one step of a FLUX-shaped block" if train else f"1x{heads}xSx{head_dim} f32"
    print(f"Peak memory beyond the inputs, forward and backward: {name}")
    print(f"{'S':>8} {'fovea':>12} {'unfused':>12}")
    for length in lengths:
        row = [_measured(how, length, heads, head_dim, train) for how in ("fovea", "unfused")]
        print(f"{length:8} {row[0]:>12} {row[1]:>12}", flush=True)
    return 0


def _measured(how: str, length: int, heads: int, head_dim: int, train: bool) -> str:
    if how == "unfused" and 4 * heads * length * length > UNFUSED_LIMIT_BYTES:
        return "not tried"
    call = json.dumps([how, length, heads, head_dim, train])
    done = subprocess.run(
        [sys.executable, "-m", "fovea._memory", call], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        return "failed"
    return f"{int(done.stdout) / 2**20:.1f} MiB"


def peak_bytes(how: str, length: int, heads: int, head_dim: int, train: bool) -> int:
    """Bytes by which this process's peak grows over a step, from what its inputs need."""
    import torch

    from . import torch as fovea_torch

    def attend(q, k, v):
        if how == "fovea":
            return fovea_torch.attention(q, k, v)
        return torch.softmax(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5, -1) @ v

    warm_up = [torch.randn(1, heads, 64, head_dim, requires_grad=True) for _ in range(3)]
    attend(*warm_up).square().mean().backward()
    if train:
        block, x = _flux_block(heads, head_dim, attend), torch.randn(1, length, heads * head_dim)
        before = _peak()
        block(x).square().mean().backward()
    else:
        inputs = [torch.randn(1, heads, length, head_dim, requires_grad=True) for _ in range(3)]
        before = _peak()
        attend(*inputs).square().mean().backward()
    return _peak() - before


def _flux_block(heads: int, head_dim: int, attend):
    """A single-stream block: one projection to q, k, v and the MLP, QK-norm, attention, one
    projection back."""
    import torch
    import torch.nn.functional as F

    width = heads * head_dim
    into = torch.nn.Linear(width, 3 * width + 4 * width)
    back = torch.nn.Linear(width + 4 * width, width)

    def block(x):
        qkv, mlp = into(F.layer_norm(x, (width,))).split((3 * width, 4 * width), -1)
        q, k, v = qkv.view(*x.shape[:2], 3, heads, head_dim).permute(2, 0, 3, 1, 4)
        q, k = (F.rms_norm(t, (head_dim,)) for t in (q, k))
        out = attend(q, k, v).transpose(1, 2).flatten(2)
        return x + back(torch.cat((out, F.gelu(mlp, approximate="tanh")), -1))

    return block


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    print(peak_bytes(*json.loads(sys.argv[1])))
