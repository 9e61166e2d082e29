#!/usr/bin/env bash
# build.sh PRESET [TARGET...]: configures and builds into build/PRESET.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift

start=$SECONDS
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "fovea: configuring build/$preset"
if ! cmake --preset "$preset" >"$log" 2>&1; then
  cat "$log" >&2
  echo "fovea: configuring build/$preset failed" >&2
  exit 1
fi
echo "fovea: building build/$preset with ${JOBS:-$(nproc)} jobs"
if ! cmake --build "build/$preset" --parallel "${JOBS:-$(nproc)}" ${@:+--target "$@"}; then
  echo "fovea: build of build/$preset failed" >&2
  exit 1
fi
echo "fovea: built build/$preset in $((SECONDS - start)) s"
