#!/usr/bin/env bash
# check_tidy.sh BUILD [FILE...]: clang-tidy, with the compile commands of BUILD, over the given
# files or over the library's sources (kernels are left to the compiler and the sanitizers).
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift

tool=$(command -v clang-tidy-14 || command -v clang-tidy || true)
if [[ -z "$tool" ]]; then
  echo "tidy: clang-tidy is not installed (scripts/install_dependencies.sh --lint)" >&2
  exit 1
fi
files=("$@")
if [[ ${#files[@]} -eq 0 ]]; then
  mapfile -t files < <(find src/contract src/core src/api src/registry.cpp io -name '*.cpp' | sort)
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "${JOBS:-$(nproc)}" \
    "$tool" -p "$build" --quiet --extra-arg=-Wno-unknown-warning-option >"$log" 2>&1; then
  grep -v 'warnings generated' "$log" >&2
  echo "tidy: findings in ${#files[@]} files" >&2
  exit 1
fi
echo "tidy: ${#files[@]} files without findings"
