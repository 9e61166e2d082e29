#!/usr/bin/env python3
"""Fovea against PyTorch's attention backends on a GPU, interleaved in one process.

PyTorch is a peer here and nothing else. From the root of the repository, with a shared libfovea that
has the CUDA backend, and a PyTorch that has CUDA:

    python3 bench/gpu_peers.py --library build/cuda/src/shared/libfovea.so --json gpu-peers.json \\
        --markdown docs/performance/gpu-peers.md --plot docs/performance/gpu-peers.png

Protocol. Inputs of deviation 1, operands [batch, heads, seq, head_dim], contiguous on all sides.
Fovea goes through the C ABI with plans that are made once and workspaces of the caller's; PyTorch
through scaled_dot_product_attention with one backend allowed at a time. Before a row is timed,
Fovea's results are compared with the formulas in f64 on some query rows and one KV head; a wrong one
is not reported and the exit status is 1. Then all run in turn, for a number of rounds, each as often
as fills --ms milliseconds, timed by CUDA events; each round gives one ratio theirs / ours: above 1,
Fovea is faster. TFLOP/s counts 4*B*H*Sq*Skv*D forward and 2.5 times that backward, halved when
causal. The last columns are the lower quartiles of the ratios to each peer.
"""
from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import math
import re
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import fovea_ctypes as fovea

ROOT = Path(__file__).resolve().parent.parent
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
ABI_DTYPES = {torch.float32: fovea.F32, torch.float16: fovea.F16, torch.bfloat16: fovea.BF16}
PEERS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash2": SDPBackend.FLASH_ATTENTION,
         "efficient": SDPBackend.EFFICIENT_ATTENTION}
TOLERANCE = {"f32": 1e-5, "f16": 5e-3, "bf16": 3e-2}  # those of a self-check: docs/tolerances.md


@dataclass(frozen=True)
class Case:
    name: str
    dtype: str
    batch: int
    q_heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    causal: bool

    def flops(self, backward: bool) -> float:
        whole = 4.0 * self.batch * self.q_heads * self.q_len * self.kv_len * self.head_dim
        return whole * (0.5 if self.causal else 1) * (2.5 if backward else 1)


def sweep(dtype: str, head_dim: int, causal: bool, seqs: list[int]) -> list[Case]:
    """16k tokens in all, width 2048."""
    heads = 2048 // head_dim
    kind = "causal" if causal else "full"
    return [Case(f"{dtype} d{head_dim} s{s} {kind}", dtype, max(1, 16384 // s), heads, heads, s, s,
                 head_dim, causal) for s in seqs]


def all_cases() -> list[Case]:
    cases = []
    for head_dim in (64, 128, 256):
        for causal in (False, True):
            cases += sweep("bf16", head_dim, causal, [512, 1024, 2048, 4096, 8192, 16384])
    cases += [
        Case("flux bf16 1x24x4608x128", "bf16", 1, 24, 24, 4608, 4608, 128, False),
        Case("z-image bf16 1x30x4128x128", "bf16", 1, 30, 30, 4128, 4128, 128, False),
        Case("gpt2 bf16 8x12x1024x64 causal", "bf16", 8, 12, 12, 1024, 1024, 64, True),
        Case("llama bf16 1x32/8x8192x128 causal", "bf16", 1, 32, 8, 8192, 8192, 128, True),
        Case("f16 1x16x8192x128 causal", "f16", 1, 16, 16, 8192, 8192, 128, True),
        Case("f32 1x24x6144x128", "f32", 1, 24, 24, 6144, 6144, 128, False),
        Case("f32 8x12x1024x64 causal", "f32", 8, 12, 12, 1024, 1024, 64, True),
        Case("decode bf16 1x32/8 kv 8192", "bf16", 1, 32, 8, 1, 8192, 128, False),
        Case("decode bf16 1x32/8 kv 131072", "bf16", 1, 32, 8, 1, 131072, 128, False),
        Case("decode bf16 16x32/8 kv 8192", "bf16", 16, 32, 8, 1, 8192, 128, False),
    ]
    return cases


@dataclass
class Timing:
    ms: float = 0
    tflops: float = 0
    gbps: float = 0  # of K and V
    ratio: tuple[float, float, float] = (0, 0, 0)  # theirs / ours: lower quartile, median, upper
    reason: str = ""


@dataclass
class Row:
    case: Case
    direction: str
    kernel: str = ""
    workspace_bytes: int = 0
    errors: dict[str, float] = field(default_factory=dict)
    ours: Timing = field(default_factory=Timing)
    peers: dict[str, Timing] = field(default_factory=dict)
    reason: str = ""


def view(t: torch.Tensor) -> fovea.Tensor:
    return fovea.tensor(t.data_ptr(), ABI_DTYPES[t.dtype], t.shape, t.stride(), fovea.CUDA)


class Inputs:
    def __init__(self, case: Case, backward: bool) -> None:
        torch.manual_seed(case.q_len + case.head_dim)
        dtype = DTYPES[case.dtype]

        def normal(heads: int, rows: int) -> torch.Tensor:
            return torch.randn(case.batch, heads, rows, case.head_dim, device="cuda", dtype=dtype)

        self.q, self.k, self.v = (normal(case.q_heads, case.q_len), normal(case.kv_heads, case.kv_len),
                                  normal(case.kv_heads, case.kv_len))
        self.dout = normal(case.q_heads, case.q_len) if backward else None


class Ours:
    """Plans for a case, and what they write."""

    def __init__(self, library: fovea.Library, case: Case, inputs: Inputs,
                 options: argparse.Namespace) -> None:
        self.out = torch.full_like(inputs.q, math.nan)
        self.lse = torch.full(inputs.q.shape[:3], math.nan, device="cuda")
        self._memory: list[torch.Tensor] = []
        self._params = fovea.Params(q=fovea.operand(view(inputs.q)), k=fovea.operand(view(inputs.k)),
                                    v=fovea.operand(view(inputs.v)))
        if case.causal:
            self._params.band_anchor, self._params.band_left = fovea.TOP_LEFT, fovea.UNBOUNDED
        params = ctypes.pointer(self._params)
        own = {} if options.autotune else {"backend": "cuda"}

        def choice(direction: str) -> dict[str, str]:
            name = options.kernel
            if name and not name.endswith((".forward", ".backward")):
                name += "." + direction
            return {"kernel": name} if name.endswith("." + direction) else own

        common = {"allocate": self._allocate, "stream": torch.cuda.current_stream().cuda_stream,
                  "autotune": options.autotune}
        saved = {"params": params, "out": fovea.operand(view(self.out)), "lse": view(self.lse)}
        self.forward = fovea.Plan(library, fovea.ForwardArgs(**saved), **choice("forward"), **common)
        if inputs.dout is None:
            return
        self.dq, self.dk, self.dv = (torch.full_like(t, math.nan)
                                     for t in (inputs.q, inputs.k, inputs.v))
        args = fovea.BackwardArgs(dout=fovea.operand(view(inputs.dout)), **saved,
                                  dq=fovea.operand(view(self.dq)), dk=fovea.operand(view(self.dk)),
                                  dv=fovea.operand(view(self.dv)))
        self.backward = fovea.Plan(library, args, deterministic=options.deterministic,
                                   **choice("backward"), **common)

    def _allocate(self, size: int) -> int:
        self._memory.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        return self._memory[-1].data_ptr()


def errors_of(case: Case, inputs: Inputs, ours: Ours) -> dict[str, float]:
    """Relative to the formulas in f64, on one KV head of the last sequence."""
    group = case.q_heads // case.kv_heads
    b, kv = case.batch - 1, case.kv_heads - 1
    heads = slice(kv * group, (kv + 1) * group)
    q, k, v = inputs.q[b, heads].double(), inputs.k[b, kv].double(), inputs.v[b, kv].double()
    scale = 1 / math.sqrt(case.head_dim)
    errors: dict[str, float] = {}

    def relative(name: str, got: torch.Tensor, want: torch.Tensor) -> None:
        error = ((got.double() - want).norm() / want.norm()).item()
        errors[name] = error if math.isfinite(error) else math.inf

    keys = torch.arange(case.kv_len, device="cuda")
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    outs, lses, dqs = [], [], []
    for rows in torch.arange(case.q_len, device="cuda").split(max(1, 2**27 // case.kv_len // group)):
        scores = scale * q[:, rows] @ k.T
        if case.causal:
            scores = scores.masked_fill(keys > rows[:, None], -math.inf)
        lse = scores.logsumexp(-1)
        p = (scores - lse[..., None]).exp()
        out = p @ v
        outs.append(out)
        lses.append(lse)
        if inputs.dout is None:
            continue
        dout = inputs.dout[b, heads][:, rows].double()
        dv += torch.einsum("hij,hid->jd", p, dout)
        ds = p * (dout @ v.T - (dout * out).sum(-1, keepdim=True)) * scale
        dqs.append(ds @ k)
        dk += torch.einsum("hij,hid->jd", ds, q[:, rows])
    relative("out", ours.out[b, heads], torch.cat(outs, 1))
    errors["lse"] = (ours.lse[b, heads].double() - torch.cat(lses, 1)).abs().max().item()
    if inputs.dout is not None:
        relative("dq", ours.dq[b, heads], torch.cat(dqs, 1))
        relative("dk", ours.dk[b, kv], dk)
        relative("dv", ours.dv[b, kv], dv)
    return errors


def milliseconds(run, repeats: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeats


def compare(row: Row, ours, peers: dict, options: argparse.Namespace) -> None:
    """Times all in turn."""
    everyone = {"ours": ours, **peers}
    for run in everyone.values():
        run()
    once = {name: milliseconds(run, 3) for name, run in everyone.items()}
    repeats = {name: max(1, math.ceil(options.ms / t)) for name, t in once.items()}
    times: dict[str, list[float]] = {name: [] for name in everyone}
    for _ in range(options.rounds):
        for name, run in everyone.items():
            times[name].append(milliseconds(run, repeats[name]))
    backward = row.direction == "backward"
    case = row.case
    kv_bytes = 2.0 * case.batch * case.kv_heads * case.kv_len * case.head_dim * (
        4 if case.dtype == "f32" else 2)
    for name, measured in times.items():
        timing = row.ours if name == "ours" else row.peers.setdefault(name, Timing())
        timing.ms = statistics.median(measured)
        timing.tflops = case.flops(backward) / timing.ms * 1e-9
        timing.gbps = kv_bytes / timing.ms * 1e-6
        ratios = [theirs / mine for theirs, mine in zip(measured, times["ours"])]
        timing.ratio = tuple(statistics.quantiles(ratios, n=4))


def run_case(library: fovea.Library, case: Case, options: argparse.Namespace) -> list[Row]:
    backward = case.q_len > 1 and not options.forward_only
    inputs = Inputs(case, backward)
    rows = [Row(case, d) for d in (["forward", "backward"] if backward else ["forward"])]
    try:
        ours = Ours(library, case, inputs, options)
    except fovea.FoveaError as error:
        for row in rows:
            row.reason = str(error)
        return rows
    ours.forward.run()
    if backward:
        ours.backward.run()
    torch.cuda.synchronize()
    errors = errors_of(case, inputs, ours)
    limit = TOLERANCE[case.dtype]
    for row in rows:
        row.errors = errors
        if any(error > limit for name, error in errors.items() if name != "lse"):
            row.reason = "WRONG: " + ", ".join(f"{n} {e:.1e}" for n, e in errors.items())
    if rows[0].reason:
        return rows

    def attention(q, k, v):
        return scaled_dot_product_attention(q, k, v, is_causal=case.causal,
                                            enable_gqa=case.q_heads != case.kv_heads)

    forward, back = {}, {}
    for name in options.peers:
        try:
            with sdpa_kernel([PEERS[name]]):
                q, k, v = (t.detach().requires_grad_(backward) for t in (inputs.q, inputs.k, inputs.v))
                out = attention(q, k, v)

                def run(name=name):
                    with sdpa_kernel([PEERS[name]]), torch.no_grad():
                        attention(inputs.q, inputs.k, inputs.v)

                forward[name] = run
                if backward:
                    torch.autograd.grad(out, (q, k, v), inputs.dout, retain_graph=True)
                    back[name] = lambda out=out, qkv=(q, k, v): torch.autograd.grad(
                        out, qkv, inputs.dout, retain_graph=True)
        except RuntimeError as error:
            for row in rows:
                row.peers[name] = Timing(reason=str(error).splitlines()[0][:80])
    rows[0].kernel, rows[0].workspace_bytes = ours.forward.kernel, ours.forward.workspace_bytes
    compare(rows[0], ours.forward.run, forward, options)
    if backward:
        rows[1].kernel, rows[1].workspace_bytes = ours.backward.kernel, ours.backward.workspace_bytes
        compare(rows[1], ours.backward.run, back, options)
    return rows


def text_of(row: Row, peers: list[str]) -> list[str]:
    cells = [row.case.name, row.direction]
    if row.reason:
        return cells + [row.reason] + [""] * (len(peers) + 2)
    cells += [f"{row.ours.ms:.3f}", f"{row.ours.tflops:.0f}", row.kernel]
    for name in peers:
        peer = row.peers.get(name, Timing(reason="not run"))
        cells.append("—" if peer.reason else f"{peer.tflops:.0f} ({peer.ratio[0]:.2f})")
    return cells


def draw(rows: list[Row], peers: list[str], title: str, path: Path) -> None:
    """TFLOP/s over S of the bf16 sweeps, a panel for each head dim, direction and band."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    dims = sorted({row.case.head_dim for row in swept(rows)})
    kinds = [(d, c) for d in ("forward", "backward") for c in (False, True)]
    figure, panels = pyplot.subplots(len(kinds), len(dims), figsize=(4.5 * len(dims), 12),
                                     sharex=True, squeeze=False, layout="constrained")
    for line, (direction, causal) in zip(panels, kinds):
        for panel, dim in zip(line, dims):
            chosen = [row for row in swept(rows) if row.direction == direction and not row.reason
                      and row.case.causal == causal and row.case.head_dim == dim]
            for name in ("Fovea", *peers):
                points = [(row.case.q_len, row.ours if name == "Fovea" else row.peers.get(name))
                          for row in chosen]
                points = [(s, timing.tflops) for s, timing in points
                          if timing is not None and not timing.reason]
                if points:
                    panel.plot(*zip(*points), marker="o", label=name,
                               linewidth=2.5 if name == "Fovea" else 1.2)
            panel.set_title(f"D{dim} {'causal' if causal else 'full'}, {direction}")
            panel.set_xscale("log", base=2)
            panel.set_ylim(bottom=0)
            panel.grid(alpha=0.3)
    panels[0][0].legend()
    for line in panels:
        line[0].set_ylabel("TFLOP/s")
    for panel in panels[-1]:
        panel.set_xlabel("S")
    figure.suptitle(title)
    figure.savefig(path, dpi=80)


def swept(rows: list[Row]) -> list[Row]:
    """Those of all_cases() that are one of a series over S."""
    return [row for row in rows if row.case.name.startswith("bf16 d")]


def commit() -> str:
    done = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"], text=True,
                          capture_output=True, check=False)
    return done.stdout.strip() or "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, default=ROOT / "build/cuda/src/shared/libfovea.so")
    parser.add_argument("--filter", default="", help="a regular expression that a case's name contains")
    parser.add_argument("--kernel", default="",
                        help="Fovea's kernel, for one direction where the name has it; else its choice")
    parser.add_argument("--autotune", action="store_true",
                        help="Fovea measures all kernels that serve, cuDNN's too, and takes the "
                             "fastest; else its own")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=7, help="7 or more for a claim")
    parser.add_argument("--ms", type=float, default=20, help="of one side in one round")
    parser.add_argument("--forward-only", action="store_true")
    parser.add_argument("--deterministic", action="store_true", help="backward")
    for name in ("--json", "--markdown", "--plot"):
        parser.add_argument(name, type=Path, metavar="PATH")
    options = parser.parse_args()
    library = fovea.Library(options.library)
    torch.backends.cuda.matmul.allow_tf32 = False
    rows: list[Row] = []
    header = ["case", "direction", "ms", "TFLOP/s", "kernel",
              *(f"{name} TFLOP/s (ratio)" for name in options.peers)]
    for case in all_cases():
        if not re.search(options.filter, case.name):
            continue
        for row in run_case(library, case, options):
            rows.append(row)
            print(" | ".join(text_of(row, options.peers)), flush=True)
        torch.cuda.empty_cache()
    facts = {"device": torch.cuda.get_device_name(), "PyTorch": torch.__version__,
             "cuDNN": str(torch.backends.cudnn.version()), "Fovea": library.version,
             "commit": commit(), "rounds": str(options.rounds),
             "command": "python3 " + " ".join(sys.argv),
             "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")}
    if options.plot and swept(rows):
        draw(rows, options.peers, f"bf16, 16k tokens, width 2048; {facts['device']}", options.plot)
    if options.json:
        options.json.write_text(json.dumps({"facts": facts, "rows": [asdict(r) for r in rows]}))
    if options.markdown:
        lines = ["# Fovea and PyTorch on a GPU", "",
                 "Ratio: a peer's time over Fovea's, lower quartile of the rounds; above 1, Fovea is "
                 "faster. The protocol stands in [bench/gpu_peers.py](../../bench/gpu_peers.py).", "",
                 *(f"- {name}: `{value}`" for name, value in facts.items()), "",
                 *([f"![TFLOP/s over S]({options.plot.name})", ""] if options.plot else []),
                 "| " + " | ".join(header) + " |", "|---" * len(header) + "|",
                 *("| " + " | ".join(text_of(row, options.peers)) + " |" for row in rows)]
        options.markdown.write_text("\n".join(lines) + "\n")
    wrong = sum(1 for row in rows if row.reason.startswith("WRONG"))
    print(f"{len(rows)} rows, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
