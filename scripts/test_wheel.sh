#!/usr/bin/env bash
# test_wheel.sh BUILD [PYTEST ARGUMENT...]: the Python package as a wheel, tested in a new
# environment. The library in it is the one that BUILD has compiled (build/dev, say), so that only
# the binding is compiled here. The environment gets PyTorch from PyPI, whose Linux wheel brings the
# CUDA libraries (4 GB): PyPI has no other, and without PyTorch most of the package is untested.
# Exits with 75 where PyPI does not give what is needed within a quarter of an hour.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
root=build/python
results=$root/test_results
rm -rf "$root"
mkdir -p "$results"

start=$SECONDS
cmake --install "$build" --prefix "$PWD/$root/installed" >/dev/null
python3 -m venv "$root/venv"
pip() { timeout 900 "$root/venv/bin/python" -m pip --disable-pip-version-check "$@"; }
pip download --quiet --no-deps --dest "$root" nanobind || exit 75
pip wheel . --quiet --no-deps --wheel-dir "$root" \
  --config-settings=cmake.define.Fovea_DIR="$(find "$PWD/$root/installed" -name FoveaConfig.cmake -printf '%h\n' -quit)"
echo "python: $(basename "$root"/fovea_attention-*.whl) built in $((SECONDS - start)) s"

start=$SECONDS
pip install --quiet --no-deps "$root"/fovea_attention-*.whl
pip install --quiet pytest numpy || exit 75
"$root/venv/bin/python" -m fovea check
# The version that it is tested with: newer ones are for whoever raises it here.
pip install --quiet "torch==${FOVEA_TEST_TORCH:-2.15.*}" || exit 75
echo "python: environment made in $((SECONDS - start)) s"

# From another folder, so that the installed package is imported and not the sources.
status=0
(cd "$results" && ../venv/bin/python -m pytest -q -c ../../../pyproject.toml ../../../python/tests \
  -m 'not slow' --junitxml=python.xml "$@") || status=$?
"$root/venv/bin/python" - "$results/python.xml" >"$results/summary.txt" <<'PYTHON'
import sys
from xml.etree import ElementTree

suite = next(ElementTree.parse(sys.argv[1]).iter("testsuite"))
total, skipped, failed = (int(suite.get(n)) for n in ("tests", "skipped", "failures"))
failed += int(suite.get("errors"))
print(total - skipped - failed, failed, skipped)
PYTHON
exit "$status"
