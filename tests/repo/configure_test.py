#!/usr/bin/env python3
"""configure_test.py CMAKE CC CXX: what CMake must refuse, it refuses with a clear message."""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CMAKE, CC, CXX = sys.argv[1:4]
LIBRARY_ONLY = ["-DFOVEA_BUILD_TESTS=OFF", "-DFOVEA_BUILD_CLI=OFF", "-DFOVEA_BUILD_LM=OFF"]
ROW = "FOVEA_KERNEL(cpu_planted_forward, planted, {})\n"
CUDA_ROW = "FOVEA_KERNEL(cuda_planted_forward, planted)\n"

# Name, options, row added to a backend's kernels.def (src/cuda's where the name begins with CUDA,
# else src/cpu's), what the message must say (None: it configures).
CASES = [
    ("library alone", LIBRARY_ONLY, "", None),
    ("kernel without source", LIBRARY_ONLY, ROW.format("baseline"), "names planted.cpp"),
    ("unknown instruction set", LIBRARY_ONLY, ROW.format("sse9"), "cannot read this row"),
    ("row that is no row", LIBRARY_ONLY, "FOVEA_KERNEL(oops)\n", "cannot read this row"),
    ("tests of a shared library", ["-DBUILD_SHARED_LIBS=ON", "-DFOVEA_BUILD_TESTS=ON"], "",
     "needs the static library"),
    ("CUDA emulated", [*LIBRARY_ONLY, "-DFOVEA_EMULATE_CUDA=ON"], "", None),
    ("CUDA kernel without source", [*LIBRARY_ONLY, "-DFOVEA_EMULATE_CUDA=ON"], CUDA_ROW,
     "names planted.cpp"),
    ("CUDA row that is no row", [*LIBRARY_ONLY, "-DFOVEA_EMULATE_CUDA=ON"],
     "FOVEA_KERNEL(oops)\n", "cannot read this row"),
    ("CUDA without its compiler",
     [*LIBRARY_ONLY, "-DFOVEA_WITH_CUDA=ON", "-DCMAKE_CUDA_COMPILER=/nowhere/nvcc"], "",
     "/nowhere/nvcc"),
    ("cuDNN without CUDA", [*LIBRARY_ONLY, "-DFOVEA_WITH_CUDNN=ON"], "",
     "this build has no CUDA backend for it"),
]


def main():
    environment = {**os.environ, "CC": CC, "CXX": CXX}
    failures = 0
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "copy"
        for name in ("cmake", "src", "include"):
            shutil.copytree(ROOT / name, copy / name)
        for name in ("CMakeLists.txt", "LICENSE"):
            shutil.copy(ROOT / name, copy / name)
        for name, options, row, expected in CASES:
            rows = copy / ("src/cuda" if name.startswith("CUDA") else "src/cpu") / "kernels.def"
            before = rows.read_text()
            rows.write_text(before + row)
            build = Path(temporary) / "build"
            shutil.rmtree(build, ignore_errors=True)
            run = subprocess.run([CMAKE, "-S", copy, "-B", build, "-G", "Ninja", *options],
                                 env=environment, capture_output=True, text=True)
            rows.write_text(before)
            output = " ".join((run.stdout + run.stderr).split())
            right = run.returncode == 0 if expected is None else (
                run.returncode != 0 and expected in output)
            if not right:
                print(f"FAILED: {name}: wanted {expected!r}\n{run.stdout}{run.stderr}")
                failures += 1
    print(f"{len(CASES) - failures} of {len(CASES)} configurations as they should be")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
