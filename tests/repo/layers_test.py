#!/usr/bin/env python3
"""The layer check accepts the sources and sees every back-edge that is planted in a copy."""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECK = ROOT / "scripts/check_layers.py"

# File (made or appended to), line, what the check must say.
PLANTED = [
    ("include/fovea/tensor.h", '#include "contract/problem.h"', "public headers include <...> only"),
    ("include/fovea/planted.h", "#include <contract/problem.h>", "may not include src/contract"),
    ("src/contract/planted.h", '#include "core/memory.h"', "src/contract may not include src/core"),
    ("src/core/planted.cpp", '#include "cpu/isa.h"', "src/core may not include src/cpu"),
    ("src/core/planted.cpp", '#include "api/planted.h"', "src/core may not include src/api"),
    ("src/cpu/planted.cpp", '#include "core/memory.h"', "src/cpu may not include src/core"),
    ("src/cuda/planted.cu", '#include "cpu/isa.h"', "src/cuda may not include src/cpu"),
    ("src/api/planted.cpp", '#include "cpu/isa.h"', "src/api may not include src/cpu"),
    ("src/cpu/planted.cpp", '#include "../core/memory.h"', "name headers from the source root"),
    ("src/planted/new.cpp", "", "has no layer"),
    ("lm/planted.cpp", '#include "contract/problem.h"', "lm may not include src/contract"),
    ("lm/planted.cpp", '#include "cases/planted.h"', "lm may not include cases"),
    ("cli/planted.cpp", '#include "core/memory.h"', "cli may not include src/core"),
    ("cases/planted.cpp", '#include "lm/tensor.h"', "cases may not include lm"),
    ("src/core/planted.cpp", "#include <torch/torch.h>", "neither PyTorch nor Python"),
    ("lm/planted.cpp", "#include <Python.h>", "neither PyTorch nor Python"),
    ("src/core/long.cpp", "int x;\n" * 600, "split it"),
]


def check(root):
    run = subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True)
    return run.returncode, run.stdout + run.stderr


def main():
    code, output = check(ROOT)
    if code != 0:
        print(output)
        return 1
    failures = 0
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "copy"
        for folder in ("include", "src", "io", "lm", "cases", "cli"):
            shutil.copytree(ROOT / folder, copy / folder)
        for path, line, expected in PLANTED:
            file = copy / path
            before = file.read_text() if file.exists() else None
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text((before or "#pragma once\n") + line + "\n")
            code, output = check(copy)
            if code != 1 or expected not in output or path not in output:
                print(f"not seen: {path}: {line.strip()[:60]} (wanted: {expected})\n{output}")
                failures += 1
            if before is None:
                file.unlink()
            else:
                file.write_text(before)
    print(f"{len(PLANTED) - failures} of {len(PLANTED)} planted back-edges seen")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
