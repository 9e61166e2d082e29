#!/usr/bin/env python3
"""Fovea against PyTorch's scaled_dot_product_attention on the CPU, side by side in one process.

PyTorch is a peer here and nothing else: no build and no test of this repository needs it. To run
this, from the root of the repository, with an environment of its own outside of it:

    cmake -S . -B build/shared -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \\
        -DFOVEA_BUILD_CLI=OFF -DFOVEA_BUILD_LM=OFF
    cmake --build build/shared
    python3 -m venv ~/venv-torch && ~/venv-torch/bin/pip install torch numpy matplotlib
    ~/venv-torch/bin/python bench/peers.py --seq 512 1024 --dtypes f32          # a quick run
    ~/venv-torch/bin/python bench/peers.py --json peers-cpu.json \\
        --markdown docs/performance/peers-cpu.md --plot docs/performance/peers-cpu.png

Protocol. Batch 1, 8 query heads, inputs of deviation 1, operands [batch, heads, seq, head_dim]
and contiguous on both sides. Fovea goes through the C ABI with plans that are made once, PyTorch
through the public function, both with the same number of threads. Only flash kernels may serve: a
row that either side refuses has the reason instead of a number. Before a row is timed, one KV head
of both results is compared with the formulas in f64, and the whole of Fovea's with PyTorch's; a
wrong one is not reported, and the exit status is 1. Then the two run in turn (ours, theirs, ours,
...), in each round as often as fills 20 ms, and each round gives one ratio theirs / ours: above 1,
Fovea is faster. `forward` writes out and lse and no graph is recorded; `forward+backward` adds dq,
dk and dv. TFLOP/s counts 4*B*H*Sq*Skv*D forward and 2.5 times that backward, halved when causal;
a mask does not lower it. `others` is the share of the machine that other processes took meanwhile:
above a few percent a row means little, least of all where short calls wait for each other.
"""
from __future__ import annotations

import argparse
import ctypes
import datetime
import itertools
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import fovea_ctypes as fovea

ROOT = Path(__file__).resolve().parent.parent
Q_HEADS = 8
DIRECTIONS = ["forward", "forward+backward"]
VARIANTS = {"full": 8, "causal": 8, "mask": 8, "gqa": 2}  # and the KV heads of each
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
ABI_DTYPES = {torch.float32: fovea.F32, torch.float16: fovea.F16, torch.bfloat16: fovea.BF16,
              torch.bool: fovea.BOOL}
TOLERANCE = {"f32": 1e-5, "f16": 5e-3, "bf16": 3e-2}  # those of a self-check: docs/tolerances.md
VISIBLE = 0.75        # share of a boolean mask; it has no pattern, so that no tile can be skipped
MIN_SECONDS = 0.02    # of one side in one round
PAUSE_SECONDS = 0.01  # before a side runs: the other's threads stop spinning

Tensors = dict[str, torch.Tensor]  # by name: out, and with gradients dq, dk, dv


class WrongResult(RuntimeError):
    """A result that is further from the truth than the tolerance."""


@dataclass(frozen=True)
class Case:
    """What one row measures."""
    dtype: str
    head_dim: int
    variant: str
    seq: int
    direction: str

    @property
    def backward(self) -> bool:
        return self.direction == DIRECTIONS[1]

    def tflops(self, ms: float) -> float:
        flops = 4.0 * Q_HEADS * self.seq**2 * self.head_dim * (3.5 if self.backward else 1)
        return flops * (0.5 if self.variant == "causal" else 1) / ms * 1e-9


@dataclass
class Row:
    """What was found for a case: numbers, or the reason why there are none."""
    case: Case
    reason: str = ""
    kernels: str = ""
    errors: dict[str, float] = field(default_factory=dict)
    ours_ms: float = 0
    theirs_ms: float = 0
    ours_tflops: float = 0
    theirs_tflops: float = 0
    ratio: tuple[float, float, float] = (0, 0, 0)  # lower quartile, median, upper quartile
    others: float = 0  # share of the machine

    def take(self, times: list[list[float]], others: float) -> None:
        """times: of each round, ours and theirs in seconds; others: CPUs that were not ours."""
        self.ours_ms, self.theirs_ms = (1e3 * statistics.median(t) for t in zip(*times))
        self.ours_tflops, self.theirs_tflops = map(self.case.tflops, (self.ours_ms, self.theirs_ms))
        low, middle, high = statistics.quantiles((b / a for a, b in times), method="inclusive")
        self.ratio = low, middle, high
        self.others = max(0.0, others / (os.cpu_count() or 1))

    def __str__(self) -> str:
        case = self.case
        name = f"{case.dtype:4} {case.variant:6} d{case.head_dim:<3} S{case.seq:<5} "
        if self.reason:
            return f"{name}{case.direction:16} -- {self.reason}"
        low, middle, high = self.ratio
        return (f"{name}{case.direction:16} ours {self.ours_ms:9.3f} ms {self.ours_tflops:6.3f} "
                f"TFLOP/s  theirs {self.theirs_ms:9.3f} ms {self.theirs_tflops:6.3f} TFLOP/s  "
                f"ratio {middle:5.2f} [{low:.2f} .. {high:.2f}]  others {self.others:4.0%}  "
                f"{self.kernels}")


class Inputs:
    """Random operands of a case, the same for both sides."""

    def __init__(self, case: Case) -> None:
        generator = torch.Generator().manual_seed(case.seq + case.head_dim)

        def normal(heads: int) -> torch.Tensor:
            shape = (1, heads, case.seq, case.head_dim)
            return torch.randn(shape, generator=generator).to(DTYPES[case.dtype])

        self.case, self.kv_heads = case, VARIANTS[case.variant]
        self.q, self.dout = normal(Q_HEADS), normal(Q_HEADS)
        self.k, self.v = normal(self.kv_heads), normal(self.kv_heads)
        self.causal = case.variant == "causal"
        self.mask: torch.Tensor | None = None
        if case.variant == "mask":
            self.mask = torch.rand(case.seq, case.seq, generator=generator) < VISIBLE
            self.mask.fill_diagonal_(True)  # no row sees nothing


def view(tensor: torch.Tensor) -> fovea.Tensor:
    return fovea.tensor(tensor.data_ptr(), ABI_DTYPES[tensor.dtype], tensor.shape, tensor.stride())


def operand(tensor: torch.Tensor) -> fovea.Operand:
    return fovea.operand(view(tensor))


class Ours:
    """Fovea on `inputs`: plans and results that each run reuses."""

    def __init__(self, library: fovea.Library, inputs: Inputs, threads: int) -> None:
        wanted = {"out": inputs.q, "dq": inputs.q, "dk": inputs.k, "dv": inputs.v}
        # NaN: an element that is not written is seen.
        self.results = {name: torch.full_like(t, math.nan) for name, t in wanted.items()}
        self._keep = inputs, torch.full(inputs.q.shape[:3], math.nan)
        params = fovea.Params(q=operand(inputs.q), k=operand(inputs.k), v=operand(inputs.v))
        if inputs.causal:
            params.band_anchor, params.band_left = fovea.TOP_LEFT, fovea.UNBOUNDED
        if inputs.mask is not None:
            params.mask = view(inputs.mask)
        results = {name: operand(t) for name, t in self.results.items()}
        saved = {"params": ctypes.pointer(params), "out": results.pop("out"),
                 "lse": view(self._keep[1])}
        calls: list[fovea.ForwardArgs | fovea.BackwardArgs] = [fovea.ForwardArgs(**saved)]
        if inputs.case.backward:
            calls.append(fovea.BackwardArgs(dout=operand(inputs.dout), **saved, **results))
        self._plans = [fovea.Plan(library, args, threads, backend="flash") for args in calls]
        self.kernels = ", ".join(plan.kernel for plan in self._plans)

    def run(self) -> Tensors:
        for plan in self._plans:
            plan.run()
        return self.results


class Theirs:
    """PyTorch on `inputs`."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._q, self._k, self._v = (t.detach().requires_grad_(inputs.case.backward)
                                     for t in (inputs.q, inputs.k, inputs.v))

    def run(self) -> Tensors:
        inputs = self._inputs
        out = scaled_dot_product_attention(
            self._q, self._k, self._v, attn_mask=inputs.mask, is_causal=inputs.causal,
            enable_gqa=inputs.kv_heads != Q_HEADS)
        if not inputs.case.backward:
            return {"out": out}
        dq, dk, dv = torch.autograd.grad(out, (self._q, self._k, self._v), inputs.dout)
        return {"out": out, "dq": dq, "dk": dk, "dv": dv}


def exact(inputs: Inputs, kv_head: int) -> Tensors:
    """One KV head and its query heads by the formulas, in f64, some query rows at a time."""
    group = Q_HEADS // inputs.kv_heads
    heads = slice(kv_head * group, (kv_head + 1) * group)
    q, dout = inputs.q[0, heads].double(), inputs.dout[0, heads].double()
    k, v = inputs.k[0, kv_head].double(), inputs.v[0, kv_head].double()
    scale = 1 / math.sqrt(inputs.case.head_dim)
    out, dq = torch.empty_like(q), torch.empty_like(q)
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    columns = torch.arange(inputs.case.seq)
    for rows in columns.split(256):
        scores = scale * q[:, rows] @ k.T
        if inputs.causal:
            scores.masked_fill_(columns > rows[:, None], -math.inf)
        if inputs.mask is not None:
            scores.masked_fill_(~inputs.mask[rows], -math.inf)
        p = scores.softmax(-1)
        out[:, rows] = p @ v
        if inputs.case.backward:
            dp = dout[:, rows] @ v.T
            ds = scale * p * (dp - (dp * p).sum(-1, keepdim=True))
            dq[:, rows] = ds @ k
            dk += (ds.mT @ q[:, rows]).sum(0)
            dv += (p.mT @ dout[:, rows]).sum(0)
    truth = {"out": out, "dq": dq, "dk": dk[None], "dv": dv[None]}
    return truth if inputs.case.backward else {"out": out}


def distance(results: Tensors, truth: Tensors) -> float:
    """The largest relative L2 error; NaN if any is."""
    errors = [(results[name].double() - t.double()).norm() / t.double().norm()
              for name, t in truth.items()]
    return torch.stack(errors).max().item()


def check(inputs: Inputs, ours: Tensors, theirs: Tensors) -> dict[str, float]:
    """The errors of both sides, where they are small enough."""
    truth = exact(inputs, inputs.kv_heads - 1)
    ours_sample, theirs_sample = ({name: results[name][0, -len(t):] for name, t in truth.items()}
                                  for results in (ours, theirs))
    errors = {"ours": distance(ours_sample, truth), "theirs": distance(theirs_sample, truth),
              "ours_from_theirs": distance(ours, theirs)}
    if not all(error <= TOLERANCE[inputs.case.dtype] for error in errors.values()):
        listed = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
        raise WrongResult(f"wrong: relative L2 errors {listed}")
    return errors


def seconds(run: Callable[[], object], calls: int) -> float:
    """Seconds a call, over `calls` calls."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def interleaved(runs: list[Callable[[], object]], rounds: int) -> list[list[float]]:
    """For each round the seconds of each run; `runs` are warm."""
    counts = [max(1, math.ceil(MIN_SECONDS / seconds(run, 1))) for run in runs]
    table = []
    for _ in range(rounds):
        times = []
        for run, calls in zip(runs, counts):
            time.sleep(PAUSE_SECONDS)
            if calls > 1:
                run()  # wakes the threads
            times.append(seconds(run, calls))
        table.append(times)
    return table


def clocks() -> tuple[float, float]:
    """Seconds that all processors were busy (or taken by the host) without us, and that passed."""
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9])
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return busy - time.process_time(), time.perf_counter()


def reasons(message: str) -> str:
    """The different reasons in a refusal, "...: kernel — reason; kernel — reason"."""
    return "; ".join(dict.fromkeys(part.rpartition(" — ")[2] for part in message.split("; ")))


def measure(library: fovea.Library, case: Case, threads: int, rounds: int) -> Row:
    """The row of a case; whatever goes wrong becomes its reason."""
    row = Row(case)
    try:
        inputs = Inputs(case)
        ours, theirs = Ours(library, inputs, threads), Theirs(inputs)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            row.errors = check(inputs, ours.run(), theirs.run())
            before = clocks()
            times = interleaved([ours.run, theirs.run], rounds)
            others, passed = (b - a for a, b in zip(before, clocks()))
    except fovea.Unsupported as refusal:
        row.reason = "Fovea: " + reasons(str(refusal))
    except (fovea.FoveaError, WrongResult) as error:
        row.reason = f"FAILED: {error}"
    except (RuntimeError, MemoryError) as error:
        row.reason = "PyTorch: " + str(error).partition("\n")[0]
    else:
        row.kernels = ours.kernels
        row.take(times, others / passed)
    return row


def means(rows: list[Row]) -> dict[str, float]:
    """Geometric mean of the median ratios: of each direction, and of its dtypes."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for group in (row.case.direction, f"{row.case.direction} {row.case.dtype}"):
            if not row.reason:
                found.setdefault(group, []).append(row.ratio[1])
    return {group: statistics.geometric_mean(found[group]) for group in sorted(found)}


def header(library: fovea.Library, options: argparse.Namespace) -> dict[str, object]:
    """What a reader needs to judge the numbers, and to get them again."""
    names = [line.partition(":")[2].strip() for line in open("/proc/cpuinfo", encoding="utf-8")
             if line.startswith("model name")]
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT,
                            capture_output=True, text=True, check=False).stdout.strip()
    return {"command": shlex.join(["python", "bench/peers.py", *sys.argv[1:]]),
            "device": f"{names[0] if names else 'unknown'}, {os.cpu_count()} CPUs",
            "threads": options.threads, "rounds": options.rounds, "PyTorch": torch.__version__,
            "Fovea": library.version, "commit": commit,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")}


def as_markdown(about: dict[str, object], rows: list[Row], source: str, plot: str) -> str:
    lines = ["# Fovea and PyTorch on the CPU", "",
             "Ratio: PyTorch's time over Fovea's, of each round; above 1, Fovea is faster. "
             f"The protocol stands in [bench/peers.py]({source}).", ""]
    lines += [f"- {name}: `{text}`" for name, text in about.items()]
    lines += ["", f"![Ratio over S]({plot})"] if plot else []
    lines += ["", "| geometric mean of | ratio |", "|---|---|"]
    lines += [f"| {group} | {mean:.2f} |" for group, mean in means(rows).items()]
    lines += ["", "| dtype | variant | D | S | direction | Fovea ms | PyTorch ms | Fovea TFLOP/s "
              "| PyTorch TFLOP/s | lower quartile | median ratio | upper quartile | others "
              "| kernels, or why not |", "|---" * 14 + "|"]
    for row in rows:
        case = row.case
        cells = [case.dtype, case.variant, str(case.head_dim), str(case.seq), case.direction]
        if row.reason:
            cells += ["–"] * 8 + [row.reason.replace("|", r"\|")]
        else:
            times = (row.ours_ms, row.theirs_ms, row.ours_tflops, row.theirs_tflops)
            cells += [*(f"{x:.3f}" for x in times), *(f"{x:.2f}" for x in row.ratio),
                      f"{row.others:.0%}", row.kernels]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(about: dict[str, object], rows: list[Row], path: Path) -> None:
    """Ratio over S, a panel for each direction: colour is the variant, line the dtype, marker D."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    colours = dict(zip(VARIANTS, ("tab:blue", "tab:orange", "tab:green", "tab:red")))
    lines = {"f32": "-", "f16": ":", "bf16": "--"}
    figure, panels = pyplot.subplots(1, 2, figsize=(13, 5), sharey=True, layout="constrained")
    seqs = sorted({row.case.seq for row in rows})
    for panel, direction in zip(panels, DIRECTIONS):
        curves: dict[tuple[str, str, int], list[Row]] = {}
        for row in rows:
            if row.case.direction == direction and not row.reason:
                key = (row.case.variant, row.case.dtype, row.case.head_dim)
                curves.setdefault(key, []).append(row)
        for (variant, dtype, head_dim), curve in curves.items():
            bars = [[abs(row.ratio[1] - row.ratio[side]) for row in curve] for side in (0, 2)]
            panel.errorbar([row.case.seq for row in curve], [row.ratio[1] for row in curve], bars,
                           capsize=2, color=colours[variant], linestyle=lines[dtype], marker="o",
                           markerfacecolor=colours[variant] if head_dim == 64 else "white",
                           label=f"{variant} {dtype} d{head_dim}")
        panel.axhline(1, color="gray", linewidth=1)
        panel.set_xscale("log", base=2)
        panel.set_xticks(seqs, map(str, seqs))
        panel.set(title=direction, xlabel="S", ylabel="PyTorch's time / Fovea's (quartiles)")
        panel.grid(alpha=0.3)
        if curves:
            panel.legend(fontsize="small", ncols=2)
    panels[0].set_ylim(bottom=0)
    figure.suptitle(f"{about['device']}, {about['threads']} threads, PyTorch {about['PyTorch']}, "
                    f"{about['commit']}", fontsize="small")
    figure.savefig(path, dpi=120)


def write(options: argparse.Namespace, about: dict[str, object], rows: list[Row]) -> None:
    """The table and the JSON, as far as there are rows."""
    if options.json:
        data = about | {"geometric_means": means(rows), "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if options.markdown:
        source, plot = (os.path.relpath(path, options.markdown.parent) if path else ""
                        for path in (Path(__file__), options.plot))
        text = as_markdown(about, rows, source, plot)
        options.markdown.write_text(text, encoding="utf-8")


def parse() -> argparse.Namespace:
    summary, _, details = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(description=summary, epilog=details,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["f32", "bf16"])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--head-dims", nargs="+", type=int, default=[64, 128], metavar="D")
    parser.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=DIRECTIONS)
    parser.add_argument("--seq", nargs="+", type=int, metavar="S",
                        default=[128, 512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--rounds", type=int, default=7, help="7 or more for a claim")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--library", type=Path, default=ROOT / "build/shared/src/libfovea.so")
    for name in ("--json", "--markdown", "--plot"):
        parser.add_argument(name, type=Path, metavar="PATH")
    options = parser.parse_args()
    if options.rounds < 2 or min(options.threads, *options.seq, *options.head_dims) < 1:
        parser.error("--rounds must be at least 2; --threads, --seq and --head-dims at least 1")
    if not options.library.is_file():
        parser.error(f"{options.library} is not there; see --help for how to build it")
    for path in (options.json, options.markdown, options.plot):
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
    return options


def main() -> int:
    options = parse()
    torch.set_num_threads(options.threads)
    library = fovea.Library(options.library)
    about = header(library, options)
    print(*(f"{name}: {text}" for name, text in about.items()), sep="\n", flush=True)
    rows: list[Row] = []
    try:
        for wanted in itertools.product(options.dtypes, options.head_dims, options.variants,
                                        options.seq, options.directions):
            rows.append(measure(library, Case(*wanted), options.threads, options.rounds))
            print(rows[-1], flush=True)
            write(options, about, rows)
    except KeyboardInterrupt:
        print("interrupted: the rest is left out", file=sys.stderr)
    if options.plot:
        draw(about, rows, options.plot)
    for group, mean in means(rows).items():
        print(f"geometric mean of the ratio, {group}: {mean:.2f}")
    return 1 if any(row.reason.startswith("FAILED") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
