#!/usr/bin/env python3
"""scaled_dot_product_attention as PyTorch's users call it: `fovea.torch` enabled against without.

Needs the Python package (docs/python.md) beside PyTorch. From the root of the repository:

    python bench/torch_peers.py --seq 512 1024 --dtypes f32               # a quick run on the CPU
    python bench/torch_peers.py --device cuda --json torch-peers.json
    python bench/torch_peers.py --overhead                         # what a call costs besides
    python bench/torch_peers.py --rope 1x30x4128x128 --layers 12          # fused RoPE and eager

Rows, protocol and columns are those of bench/peers.py, from which the code comes, except that both
sides are the same call of the public function with all of PyTorch's kernels allowed; on a GPU a
round ends when the device has finished. --overhead times the smallest call, on one thread: through
the library's own function with everything ready (`native`), and through the routed function. What
the latter costs more is Python, PyTorch's dispatcher and, with gradients, its autograd engine, of
which an empty autograd.Function is shown beside it. --rope runs layers one after the other on bf16,
without gradients, the result of one being q of the next: `rope_attention`, against PyTorch's own
attention after rotation by eager operations.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import shlex
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.nn.functional import scaled_dot_product_attention

import fovea.torch
import peers
from fovea import _native
from fovea._config import Settings, native

OVERHEAD_WINDOWS, OVERHEAD_CALLS = 400, 10


class Side:
    """The public function on a case's inputs, with Fovea enabled or without."""

    def __init__(self, inputs: peers.Inputs, device: str, enabled: bool) -> None:
        self._call, self._enabled = peers.Theirs(inputs), enabled
        self._finish: Callable[[], None] = (
            torch.cuda.synchronize if device == "cuda" else lambda: None
        )

    def state(self) -> contextlib.AbstractContextManager[None]:
        return fovea.torch.enabled(strict=True) if self._enabled else contextlib.nullcontext()

    def results(self) -> peers.Tensors:
        with self.state():
            return {name: t.detach().cpu() for name, t in self._call.run().items()}

    def seconds(self, calls: int) -> float:
        """Seconds a call, in its state and warm."""

        def several() -> None:
            for _ in range(calls):
                self._call.run()
            self._finish()

        with self.state():
            self._call.run()
            self._finish()
            return peers.seconds(several, 1) / calls


def inputs_on(case: peers.Case, device: str) -> peers.Inputs:
    inputs = peers.Inputs(case)
    for name in ("q", "k", "v", "dout", "mask"):
        tensor = getattr(inputs, name)
        setattr(inputs, name, None if tensor is None else tensor.to(device))
    return inputs


def measure(case: peers.Case, device: str, rounds: int) -> peers.Row:
    """The row of a case; a wrong result becomes its reason."""
    row = peers.Row(case)
    inputs = inputs_on(case, device)
    sides = [Side(inputs, device, enabled) for enabled in (True, False)]
    fovea.reset_stats()
    try:
        row.errors = peers.check(peers.Inputs(case), *(side.results() for side in sides))
    except (peers.WrongResult, RuntimeError) as error:
        row.reason = f"FAILED: {error}"
        return row
    row.kernels = ", ".join(fovea.stats()["kernels"])
    counts = [max(1, int(peers.MIN_SECONDS / side.seconds(1))) for side in sides]
    before = peers.clocks()
    times = [[side.seconds(n) for side, n in zip(sides, counts)] for _ in range(rounds)]
    others, passed = (b - a for a, b in zip(before, peers.clocks()))
    row.take(times, others / passed)
    return row


class Nothing(torch.autograd.Function):
    """What PyTorch asks for any function with a gradient written in Python."""

    @staticmethod
    def forward(ctx, results, *inputs):
        ctx.results = results
        return results[0].view_as(results[0])

    @staticmethod
    def backward(ctx, dout):
        return (None, *ctx.results[1:])


def overhead() -> dict[str, float]:
    """Microseconds of the smallest call, the least of many short windows that alternate."""
    torch.set_num_threads(1)
    config = native(Settings(num_threads=1))
    q, k, v, dout = (torch.randn(1, 1, 1, 8) for _ in range(4))
    out, dq, dk, dv = (torch.empty_like(q) for _ in range(4))
    lse = torch.empty(1, 1, 1)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]

    def ready() -> None:
        _native.forward(config, q, k, v, out, None, None, 0, None, None, False)

    def ready_both() -> None:
        _native.forward(config, q, k, v, out, lse, None, 0, None, None, False)
        _native.backward(config, q, k, v, out, lse, dout, dq, dk, dv, None, 0, None, None, False)

    def routed() -> None:
        scaled_dot_product_attention(q, k, v)

    def routed_both() -> None:
        torch.autograd.grad(scaled_dot_product_attention(*leaves), leaves, dout)

    def nothing() -> None:
        torch.autograd.grad(Nothing.apply((out, dq, dk, dv), *leaves), leaves, dout)

    runs = {
        "native forward": ready,
        "routed forward": routed,
        "native both": ready_both,
        "routed both": routed_both,
        "empty autograd.Function": nothing,
    }
    with fovea.torch.enabled(strict=True, num_threads=1):
        windows = [
            [peers.seconds(run, OVERHEAD_CALLS) for run in runs.values()]
            for _ in range(OVERHEAD_WINDOWS)
        ]
    return {name: 1e6 * min(times) for name, times in zip(runs, zip(*windows))}


def rope_chain(shape: tuple[int, ...], layers: int, device: str, rounds: int) -> int:
    """Prints the ratio of a chain of layers, eager over fused, after comparing one's results."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(shape, generator=generator).to(device, torch.bfloat16) for _ in range(3))
    angle = torch.randn(shape[2], shape[3] // 2, generator=generator).to(device)
    cos, sin = angle.cos(), angle.sin()

    def chain(layer: Callable[..., torch.Tensor], count: int) -> torch.Tensor:
        x = q
        for _ in range(count):
            x = layer(x, k, v, cos, sin)
        if device == "cuda":
            torch.cuda.synchronize()
        return x

    ways = (fovea.torch.rope_attention, fovea.torch.eager_rope_attention)
    with torch.no_grad():
        fused, eager = (chain(way, 1).float() for way in ways)
        error = float((fused - eager).norm() / eager.norm())
        if not error < peers.TOLERANCE["bf16"]:
            print(f"FAILED: the results differ by {error:.1e}")
            return 1
        times = [
            [peers.seconds(lambda way=way: chain(way, layers), 1) for way in ways]
            for _ in range(rounds)
        ]
    fused_s, eager_s = (statistics.median(t) for t in zip(*times))
    low, middle, high = statistics.quantiles((b / a for a, b in times), method="inclusive")
    print(
        f"{layers} layers of {'x'.join(map(str, shape))} bf16 on {device}: fused {fused_s:.3f} s, "
        f"eager {eager_s:.3f} s, ratio {middle:.2f} [{low:.2f} .. {high:.2f}], error {error:.1e}"
    )
    return 0


def parse() -> argparse.Namespace:
    summary, _, details = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--overhead", action="store_true", help="the cost of the smallest call")
    parser.add_argument(
        "--rope",
        type=lambda text: tuple(map(int, text.split("x"))),
        metavar="BxHxSxD",
        help="fused RoPE against eager rotation, in layers",
    )
    parser.add_argument("--layers", type=int, default=12, help="of --rope")
    parser.add_argument("--dtypes", nargs="+", choices=peers.DTYPES, default=["f32", "bf16"])
    parser.add_argument(
        "--variants", nargs="+", choices=peers.VARIANTS, default=list(peers.VARIANTS)
    )
    parser.add_argument("--head-dims", nargs="+", type=int, default=[64, 128], metavar="D")
    parser.add_argument(
        "--directions", nargs="+", choices=peers.DIRECTIONS, default=peers.DIRECTIONS
    )
    parser.add_argument("--seq", nargs="+", type=int, metavar="S", default=[512, 1024, 2048, 4096])
    parser.add_argument("--rounds", type=int, default=7, help="7 or more for a claim")
    for name in ("--json", "--markdown"):
        parser.add_argument(name, type=Path, metavar="PATH")
    options = parser.parse_args()
    if options.markdown and options.device == "cuda":
        parser.error("--markdown is the CPU's page; use --json on a GPU")
    return options


def main() -> int:
    options = parse()
    if options.overhead:
        for name, microseconds in overhead().items():
            print(f"{name:24} {microseconds:8.2f} us")
        return 0
    if options.rope:
        return rope_chain(options.rope, options.layers, options.device, options.rounds)
    options.threads, options.plot = torch.get_num_threads(), None
    about = peers.header(SimpleNamespace(version=fovea.version()), options)
    about["command"] = shlex.join(["python", "bench/torch_peers.py", *sys.argv[1:]])
    if options.device == "cuda":
        about["device"] = torch.cuda.get_device_name()
    rows = []
    for wanted in itertools.product(
        options.dtypes, options.head_dims, options.variants, options.seq, options.directions
    ):
        rows.append(measure(peers.Case(*wanted), options.device, options.rounds))
        print(rows[-1], flush=True)
        peers.write(options, about, rows)
    for group, mean in peers.means(rows).items():
        print(f"geometric mean of the ratio, {group}: {mean:.2f}")
    return int(any(row.reason.startswith("FAILED") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
