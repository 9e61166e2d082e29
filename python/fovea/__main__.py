"""python -m fovea: what is here, whether it is right, and what would serve a call.

python -m fovea info                    devices and kernels, as JSON with --json
python -m fovea check                   the self-check of every kernel that runs here
python -m fovea doctor [--shape 1x24x4096x128] [--dtype bf16] [--device cpu] [--causal]
python -m fovea memory [--train]        peak memory against length, Fovea and unfused
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from . import info, version


def _shape(text: str) -> tuple[int, int, int, int]:
    try:
        sizes = tuple(int(part) for part in text.split("x"))
    except ValueError:
        sizes = ()
    if len(sizes) != 4 or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"expected BATCHxHEADSxLENGTHxHEAD_DIM, got {text!r}")
    return sizes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fovea", description="What Fovea has here and what it would do."
    )
    parser.add_argument("--version", action="version", version=version())
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("info", help="devices, kernels, absent backends")
    command.add_argument("--json", action="store_true")
    commands.add_parser("check", help="the self-check of every kernel that runs here")
    command = commands.add_parser("doctor", help="what would serve a call, and why")
    command.add_argument("--shape", type=_shape, default=(1, 24, 4096, 128))
    command.add_argument("--dtype", choices=["f32", "f16", "bf16"], default="f32")
    command.add_argument("--device", default="cpu", help="cpu or cuda")
    command.add_argument("--causal", action="store_true")
    command = commands.add_parser("memory", help="peak memory against length")
    command.add_argument("--lengths", type=int, nargs="+", default=[1536, 4096, 8192, 16384])
    command.add_argument("--heads", type=int, default=1)
    command.add_argument("--head-dim", type=int, default=64)
    command.add_argument(
        "--train", action="store_true", help="one training step of a FLUX-shaped block instead"
    )
    return parser


def _print_info(as_json: bool) -> int:
    found = info()
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    print(f"fovea {found['version']} from {found['library']}")
    for d in found["devices"]:
        print(f"  {d['type']}:{d['index']}  {d['name']}  {d['capabilities']}")
    for k in found["kernels"]:
        state = "ready" if k["available"] else f"not available: {k['reason']}"
        check = k["self_check"]
        print(f"  {k['id']:32} {state}" + ("" if check == "not run" else f", self-check {check}"))
    for absent in found["absent_backends"]:
        print(f"  {absent['backend']}: {absent['reason']}")
    return 0


def _check() -> int:
    from . import _native

    try:
        _native.run_self_checks()
    except RuntimeError as error:
        print(error)
        return 1
    checked = [k["id"] for k in info()["kernels"] if k["self_check"] == "passed"]
    print(f"{len(checked)} kernels passed their self-check: {', '.join(checked)}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    if options.command == "info":
        return _print_info(options.json)
    if options.command == "check":
        return _check()
    if options.command == "doctor":
        from ._doctor import report

        for line in report(options.shape, options.dtype, options.device, options.causal):
            print(line)
        return 0
    from . import _memory

    return _memory.main(options.lengths, options.heads, options.head_dim, options.train)


if __name__ == "__main__":
    sys.exit(main())
