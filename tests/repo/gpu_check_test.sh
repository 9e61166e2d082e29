#!/usr/bin/env bash
# gpu_check_test.sh: what scripts/gpu_check.sh makes of a tool, test programs and a sanitizer that
# are not the real ones: each failure must fail it, each absence must show as a skip.
set -euo pipefail
script=$(dirname "$0")/../../scripts/gpu_check.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/bin" "$scratch/tests"

# program FILE BODY: a shell program.
program() {
  printf '#!/usr/bin/env bash\n%s\n' "$2" >"$scratch/$1"
  chmod +x "$scratch/$1"
}
# expect STATUS LINE: runs the steps of $steps; the last line must begin with LINE.
expect() {
  local status=0 output
  output=$(PATH=$scratch/bin:$PATH STEPS=$steps FOVEA_TOOL=$scratch/fovea \
    FOVEA_TESTS=$scratch/tests bash "$script" "$scratch/out" 2>&1) || status=$?
  if [[ $status -ne $1 || $(tail -n 1 <<<"$output") != "$2"* ]]; then
    printf 'wanted status %s and %s\nfound status %s and\n%s\n' "$1" "$2" "$status" "$output" >&2
    exit 1
  fi
}
clean='echo "========= ERROR SUMMARY: 0 errors"'
no_hazards='echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"'

program fovea 'echo "  cudnn    the headers are not there"'
program bin/python3 'exit 1'
program bin/compute-sanitizer "if [[ \$2 == racecheck ]]; then $no_hazards; else $clean; fi"
program tests/fovea_test_gpu 'echo "[  PASSED  ] 12 tests."'
steps="info check cudnn random tests sanitizers peers"
expect 0 "gpu_check: 8 steps passed, 0 failed, 3 skipped: cudnn (the headers are not there) tests-cuda"

program fovea 'echo " cudnn.forward  library  priority 1 available, self-check not run"'
steps=cudnn
expect 0 "gpu_check: 1 steps passed, 0 failed, 0 skipped"
program fovea 'echo " cudnn.forward  library  priority 1 not available: no libcudnn.so.9"'
expect 0 "gpu_check: 0 steps passed, 0 failed, 1 skipped: cudnn (no libcudnn.so.9)"

steps=tests
program tests/fovea_test_gpu 'echo "[  PASSED  ] 0 tests."; echo "[  SKIPPED ] 12 tests, listed below:"'
expect 1 "gpu_check: 0 steps passed, 1 failed: tests-gpu"
program tests/fovea_test_gpu 'echo "[  PASSED  ] 11 tests."; exit 1'
expect 1 "gpu_check: 0 steps passed, 1 failed: tests-gpu"

steps=sanitizers
program bin/compute-sanitizer 'echo "========= ERROR SUMMARY: 2 errors"'
expect 1 "gpu_check: 0 steps passed, 4 failed: memcheck racecheck initcheck synccheck"
program bin/compute-sanitizer \
  'echo "========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)"'
expect 1 "gpu_check: 0 steps passed, 4 failed"
program bin/compute-sanitizer 'echo "it did not start"'
expect 1 "gpu_check: 0 steps passed, 4 failed"
program bin/compute-sanitizer "$clean; exit 9"
expect 1 "gpu_check: 0 steps passed, 4 failed"

steps=sanitizer
expect 2 "gpu_check: no step is called sanitizer"
echo "gpu_check: every failure fails it"
