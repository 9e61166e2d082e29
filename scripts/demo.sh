#!/usr/bin/env bash
# demo.sh FOVEA: trains a small GPT-2 on this project's own sources and documents, shows a sample and
# which attention kernels ran, then compares unfused with flash attention in training.
# FOVEA_DEMO_SECONDS: length of the training.
set -euo pipefail
cd "$(dirname "$0")/.."
fovea=$1

start=$SECONDS
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
text=(include src io lm cases cli tests examples docs scripts README.md CONTRIBUTING.md)

echo "fovea: training a small GPT-2 on this project's own text for ${FOVEA_DEMO_SECONDS:-150} s"
"$fovea" train --data "${text[@]}" --out "$out" --context 512 --attention-backend auto \
  --steps 0 --seconds "${FOVEA_DEMO_SECONDS:-150}" --sample 400
echo
echo "fovea: unfused against flash attention, the same model in training"
"$fovea" train --compare
echo "fovea: demo finished in $((SECONDS - start)) s"
