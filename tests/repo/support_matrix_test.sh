#!/usr/bin/env bash
# support_matrix_test.sh TOOL: docs/support-matrix.md is what the tool prints, whatever instruction
# set the machine has.
set -euo pipefail
tool=$1
page=$(dirname "$0")/../../docs/support-matrix.md
for isa in amxbf16 portable; do
  if ! FOVEA_CPU_ISA=$isa FOVEA_CUDA_SHARED_KB=99 "$tool" info --matrix | diff -u "$page" -; then
    echo "FAILED: fovea info --matrix >docs/support-matrix.md brings the page up to date"
    exit 1
  fi
done
