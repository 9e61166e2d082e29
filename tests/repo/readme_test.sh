#!/usr/bin/env bash
# readme_test.sh CXX STATIC_LIBRARY: the C++ example of README.md compiles as it stands and runs;
# the files that the documents name exist.
set -euo pipefail
cxx=$1 library=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

awk '/^```cpp$/ { inside = 1; next } /^```$/ { if (inside) exit } inside' "$root/README.md" \
  >"$folder/example.cpp"
[[ -s "$folder/example.cpp" ]] || { echo "FAILED: README.md has no C++ example"; exit 1; }
"$cxx" -std=c++20 -Wall -Wextra -Werror "-I$root/include" ${FOVEA_TEST_FLAGS:-} \
  "$folder/example.cpp" "$library" -pthread -ldl -o "$folder/example"
"$folder/example"

# links between documents
failed=0
while IFS=: read -r file link; do
  target=${link#*](}
  target=${target%%[)#]*}
  [[ -z "$target" || "$target" == http* ]] && continue
  if [[ ! -e "$(dirname "$file")/$target" ]]; then
    echo "FAILED: $file links to $target, which does not exist"
    failed=1
  fi
done < <(cd "$root" && for file in *.md docs/*.md docs/*/*.md; do
  # outside of code
  sed -e '/^```/,/^```/d' -e '/^    /d' -e 's/`[^`]*`//g' "$file" |
    { grep -o -E '\]\([^)]+\)' || true; } | sed "s|^|$root/$file:|"
done)
exit $failed
