#!/usr/bin/env bash
# gpu_check.sh [FOLDER]: what only a GPU can show, with its results in FOLDER (gpu-check): every kernel
# on every case, random cases, tests of the device, compute-sanitizer on small cases, speed beside
# PyTorch.
#   FOVEA_TOOL, FOVEA_LIBRARY, FOVEA_TESTS
#                    a built `fovea`, shared libfovea and folder of test programs; by default those of
#                    build/cuda, which is built first unless FOVEA_TOOL is given
#   STEPS            which steps to take (build info check cudnn random tests sanitizers peers)
#   RANDOM_CASES     5000
#   SANITIZER_CASES  which cases the sanitizers run, a regular expression (q50_k70_d64)
#   CUDAARCHS        architectures to build for (native)
# Ends in one line and exits with 1 if a step failed. What is not there (cuDNN in the build, the test
# programs, compute-sanitizer, a python3 with PyTorch) has its step skipped, and the line says so.
set -uo pipefail

out=$(realpath -m "${1:-gpu-check}")
cd "$(dirname "$0")/.." || exit 1
all_steps="build info check cudnn random tests sanitizers peers"
steps=${STEPS:-$all_steps}
tool=${FOVEA_TOOL:-build/cuda/fovea}
library=${FOVEA_LIBRARY:-build/cuda/src/shared/libfovea.so}
tests=${FOVEA_TESTS:-build/cuda/tests}
# An emulated device, or one that pretends to be smaller, is not what is asked about.
unset FOVEA_CUDA_EMULATE FOVEA_CUDA_SHARED_KB
mkdir -p "$out" || exit 1
passed=0 failed=() skipped=()

# step NAME COMMAND...: output goes to FOLDER/NAME.log, its end to the terminal.
step() {
  local name=$1 start=$SECONDS
  shift
  if "$@" >"$out/$name.log" 2>&1; then
    passed=$((passed + 1))
    echo "== $name: passed, $((SECONDS - start)) s: $(tail -n 1 "$out/$name.log")"
  else
    failed+=("$name")
    echo "== $name: FAILED, $((SECONDS - start)) s"
    tail -n 25 "$out/$name.log"
  fi
}
skip() {
  skipped+=("$1 ($2)")
  echo "== $1: skipped: $2"
}
wanted() { [[ " $steps " == *" $1 "* ]]; }

# Whether a program of tests passes, and has tests that were not skipped.
run_tests() {
  local log status=0
  log=$(mktemp)
  "$@" 2>&1 | tee "$log" || status=$?
  if [[ $status -eq 0 ]] && ! grep -Eq '^\[  PASSED  \] [1-9]' "$log"; then
    echo "no test was run"
    status=1
  fi
  rm -f "$log"
  return "$status"
}

# sanitized KIND COMMAND...: whether the program ends well and the sanitizer's summary, which must be
# there, counts nothing.
sanitized() {
  local kind=$1 log status=0 summary
  shift
  log=$(mktemp)
  "$sanitizer" --tool "$kind" --error-exitcode 9 "$@" 2>&1 | tee "$log" || status=$?
  summary=$(grep -E '^=+ (ERROR|RACECHECK) SUMMARY:' "$log" | tail -n 1)
  rm -f "$log"
  echo "$kind: ${summary:-no summary}"
  case $summary in
    *"ERROR SUMMARY: 0 errors"* | *"RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"*) ;;
    *) return 1 ;;
  esac
  return "$status"
}

finish() {
  echo "gpu_check: $passed steps passed, ${#failed[@]} failed${failed[*]:+: ${failed[*]}}," \
    "${#skipped[@]} skipped${skipped[*]:+: ${skipped[*]}}"
  [[ ${#failed[@]} -eq 0 ]]
  exit
}

for name in $steps; do
  if [[ " $all_steps " != *" $name "* ]]; then
    echo "gpu_check: no step is called $name; there are: $all_steps" >&2
    exit 2
  fi
done

if wanted build && [[ -z "${FOVEA_TOOL:-}" ]]; then
  export CUDAARCHS=${CUDAARCHS:-native}
  step build bash scripts/build.sh cuda
  [[ ${#failed[@]} -eq 0 ]] || finish
fi
if wanted info; then step info "$tool" info; fi
if wanted check; then
  step check "$tool" check --kernel 'cuda.*' --min-executed 400
fi
if wanted cudnn; then
  # A line of a kernel, or of a backend that is not there, with the reason.
  state=$("$tool" info 2>/dev/null | grep -E '^ +cudnn' | head -n 1 | tr -s ' ')
  case $state in
    *" not available: "*) skip cudnn "${state##* not available: }" ;;
    *" available,"*) step cudnn "$tool" check --kernel 'cudnn.*' --min-executed 10 ;;
    "") skip cudnn "it is not part of this build" ;;
    *) skip cudnn "${state# cudnn }" ;;
  esac
fi
if wanted random; then
  step random "$tool" check --kernel 'cuda.*' --random "${RANDOM_CASES:-5000}" --seed 1
fi
if wanted tests; then
  for name in gpu cuda; do
    if [[ -x "$tests/fovea_test_$name" ]]; then
      step "tests-$name" run_tests "$tests/fovea_test_$name"
    else
      skip "tests-$name" "no $tests/fovea_test_$name"
    fi
  done
fi
if wanted sanitizers; then
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
  if [[ -z "$sanitizer" ]]; then
    skip sanitizers "no compute-sanitizer"
  else
    for kind in memcheck racecheck initcheck synccheck; do
      kernels=(--kernel 'cuda.*')
      # It does not follow the bulk copies of cuda.sm90.backward: docs/known-gaps.md.
      [[ $kind == racecheck ]] && kernels=(
        --kernel 'cuda.reference.*' --kernel 'cuda.sm80.*' --kernel cuda.sm90.forward)
      step "$kind" sanitized "$kind" "$tool" \
        check "${kernels[@]}" --filter "${SANITIZER_CASES:-q50_k70_d64}"
    done
  fi
fi
if wanted peers; then
  if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    step peers python3 bench/gpu_peers.py --library "$library" --json "$out/gpu-peers.json" \
      --markdown "$out/gpu-peers.md" --plot "$out/gpu-peers.png"
    step peers-autotuned python3 bench/gpu_peers.py --library "$library" --autotune --peers cudnn \
      --json "$out/gpu-peers-autotuned.json" --markdown "$out/gpu-peers-autotuned.md"
  else
    skip peers "no python3 with PyTorch and CUDA"
  fi
fi
finish
