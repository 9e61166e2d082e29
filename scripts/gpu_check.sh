#!/usr/bin/env bash
# gpu_check.sh [FOLDER]: what only a GPU can show, with its results in FOLDER (gpu-check): every kernel
# on every case, random cases, compute-sanitizer on small ones, speed beside PyTorch.
#   FOVEA_TOOL, FOVEA_LIBRARY  a built `fovea` and shared libfovea; without them both are built
#   STEPS                      which steps to take (build info check random sanitizers peers)
#   RANDOM_CASES               5000
#   CUDAARCHS                  architectures to build for (native)
# Ends in one line and exits with 1 if a step failed. Peers need a python3 with PyTorch; without it,
# or without compute-sanitizer, that step is skipped, and the line says so.
set -uo pipefail
cd "$(dirname "$0")/.."

out=${1:-gpu-check}
steps=${STEPS:-build info check random sanitizers peers}
tool=${FOVEA_TOOL:-build/cuda/fovea}
library=${FOVEA_LIBRARY:-build/cuda/src/shared/libfovea.so}
mkdir -p "$out"
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

if wanted build && [[ -z "${FOVEA_TOOL:-}" ]]; then
  CUDAARCHS=${CUDAARCHS:-native} step build bash scripts/build.sh cuda
fi
if wanted info; then step info "$tool" info; fi
if wanted check; then
  step check "$tool" check --kernel 'cuda.*' --min-executed 400
fi
if wanted random; then
  step random "$tool" check --kernel 'cuda.*' --random "${RANDOM_CASES:-5000}" --seed 1
fi
if wanted sanitizers; then
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
  if [[ -z "$sanitizer" ]]; then
    skip sanitizers "no compute-sanitizer"
  else
    for kind in memcheck racecheck initcheck synccheck; do
      step "$kind" "$sanitizer" --tool "$kind" --error-exitcode 9 "$tool" \
        check --kernel 'cuda.*' --filter "${SANITIZER_CASES:-q50_k70_d64}"
    done
  fi
fi
if wanted peers; then
  if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    step peers python3 bench/gpu_peers.py --library "$library" --json "$out/gpu-peers.json" \
      --markdown "$out/gpu-peers.md"
  else
    skip peers "no python3 with PyTorch and CUDA"
  fi
fi

echo "gpu_check: $passed steps passed, ${#failed[@]} failed${failed[*]:+: ${failed[*]}}," \
  "${#skipped[@]} skipped${skipped[*]:+: ${skipped[*]}}"
[[ ${#failed[@]} -eq 0 ]]
