#!/usr/bin/env bash
# check_format.sh [--fix]: whether all sources are as .clang-format wants them. Exit 77: no tool.
set -euo pipefail
cd "$(dirname "$0")/.."

# Versions differ in what they write, so the pinned one is preferred.
tool=$(command -v clang-format-14 || command -v clang-format || true)
if [[ -z "$tool" ]]; then
  echo "format: clang-format is not installed (scripts/install_dependencies.sh --lint)" >&2
  exit 77
fi
folders=()
for folder in include src io lm cases cli examples tests bench python; do
  [[ -d "$folder" ]] && folders+=("$folder")
done
mapfile -d '' files < <(find "${folders[@]}" -type f \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.c' -o -name '*.cu' -o -name '*.cuh' \) -print0 | sort -z)
if [[ "${1:-}" == --fix ]]; then
  "$tool" -i "${files[@]}"
else
  "$tool" --dry-run -Werror "${files[@]}"
fi
echo "format: ${#files[@]} files"
