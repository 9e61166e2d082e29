#!/usr/bin/env python3
"""Checks that includes follow the layers of docs/architecture.md, and how long files are.

    check_layers.py [ROOT]      exits 1 and lists every violation
"""
import re
import sys
from pathlib import Path

# Folder -> folders whose headers it may include, besides its own. `fovea` stands for the public
# headers, include/fovea.
BACKENDS = ["src/cpu", "src/cuda", "src/cudnn", "src/metal"]
LAYERS = {
    "include/fovea": ["fovea"],
    "src/contract": ["fovea"],
    "src/core": ["fovea", "src/contract"],
    "src/api": ["fovea", "src/core", "src/contract"],
    "io": ["fovea"],
    "lm": ["fovea", "io"],
    "cases": ["fovea", "io"],
    "cli": ["fovea", "cases", "lm", "io"],
    "examples": ["fovea"],
    "python": ["fovea"],
    "bench": ["fovea", "cases", "lm", "io"],
    **{backend: ["fovea", "src/contract"] for backend in BACKENDS},
    # Files on their own.
    "src/registry.cpp": ["fovea", "src/contract", "src/core", *BACKENDS],
}
UNCHECKED = ["tests"]  # tests look everywhere
NEVER = re.compile(r"^(torch|ATen|c10|pybind11|Python\.h)")  # outside python/
SOURCE = {".h", ".hpp", ".inc", ".def", ".c", ".cc", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')

# Lines: where a file should be split, and where it must be.
LENGTHS = {"src/cpu": (700, 800), "src/cuda": (700, 800)}
DEFAULT_LENGTH = (400, 480)


def layer_of(path):
    """The entry of LAYERS that a file (relative, with /) belongs to, or None."""
    if path in LAYERS:
        return path
    for folder in LAYERS:
        if path.startswith(folder + "/"):
            return folder
    return None


def target_of(root, file, quote, name):
    """The layer that an include reaches: an entry of LAYERS, `fovea`, or None for a system header."""
    if name.startswith("fovea/"):
        return "fovea"
    if quote == '"' and (file.parent / name).resolve().is_file():
        path = (file.parent / name).resolve()
        return layer_of(path.relative_to(root).as_posix()) if path.is_relative_to(root) else None
    for base in ("src/" + name, name):
        layer = layer_of(base)
        if layer and (quote == '"' or (root / base).is_file()):
            return layer
    return None


def check_file(root, file, problems, warnings):
    path = file.relative_to(root).as_posix()
    layer = layer_of(path)
    text = file.read_text(encoding="utf-8", errors="replace").splitlines()
    should, must = LENGTHS.get(layer, DEFAULT_LENGTH)
    if len(text) > must:
        problems.append(f"{path}: {len(text)} lines; at most {must} (aim for {should}): split it")
    elif len(text) > should:
        warnings.append(f"{path}: {len(text)} lines; aim for {should}")
    if path.split("/")[0] in UNCHECKED:
        return
    if layer is None:
        problems.append(f"{path}: its folder has no layer in scripts/check_layers.py")
        return
    own = "fovea" if layer == "include/fovea" else layer
    for number, line in enumerate(text, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, name = match.groups()
        where = f"{path}:{number}: #include {name}"
        if layer != "python" and NEVER.match(name):
            problems.append(f"{where}: the library knows neither PyTorch nor Python")
        if name.startswith(".") or "/../" in name:
            problems.append(f"{where}: name headers from the source root")
            continue
        target = target_of(root, file, quote, name)
        if target == "include/fovea":
            target = "fovea"
        if layer == "include/fovea" and quote == '"':
            problems.append(f"{where}: public headers include <...> only")
        elif target and target != own and target not in LAYERS[layer]:
            problems.append(f"{where}: {layer} may not include {target}")
        elif quote == '"' and target is None:
            problems.append(f"{where}: belongs to no layer; write system headers as <...>")


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    folders = ["include", "src", "io", "lm", "cases", "cli", "examples", "python", "bench", "tests"]
    files = sorted(
        file for folder in folders for file in (root / folder).rglob("*")
        if file.suffix in SOURCE and file.is_file())
    problems, warnings = [], []
    for file in files:
        check_file(root, file, problems, warnings)
    for line in warnings:
        print(f"warning: {line}")
    for line in problems:
        print(f"error: {line}")
    if not files:
        print(f"error: no sources under {root}")
        return 1
    print(f"layers: {len(files)} files, {len(problems)} violations")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
