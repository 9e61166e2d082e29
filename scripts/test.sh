#!/usr/bin/env bash
# test.sh PRESET [CTEST ARGUMENT...]: runs the tests of build/PRESET and counts their cases.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift

start=$SECONDS
results=build/$preset/test_results
rm -rf "$results"
mkdir -p "$results"
echo "fovea: testing build/$preset"
# ThreadSanitizer of GCC 12 cannot place its memory where addresses are randomised in 32 bits.
run=()
if [[ "$preset" == tsan ]] && setarch -R true 2>/dev/null; then run=(setarch -R); fi
failed=0
"${run[@]}" ctest --preset "$preset" "$@" || failed=$?

# Each test program leaves its cases as XML; a script test is one case.
python3 scripts/count_cases.py "build/$preset" >"$results/summary.txt" || failed=1
read -r passed failures skipped <"$results/summary.txt"
seconds=$((SECONDS - start))
if [[ $failed -ne 0 ]]; then
  echo "fovea: TESTS FAILED ($failures failed, $passed passed, $skipped skipped) in $seconds s" >&2
  exit 1
fi
echo "fovea: all tests passed ($passed cases, $skipped skipped) in $seconds s"
