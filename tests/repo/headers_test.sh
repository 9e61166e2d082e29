#!/usr/bin/env bash
# headers_test.sh CC CXX: every public header compiles alone; the C header as C11 and as C++.
set -euo pipefail
cc=$1 cxx=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
strict=(-Wall -Wextra -Wpedantic -Werror -fsyntax-only "-I$root/include")
count=0
for header in "$root"/include/fovea/*.h; do
  name=fovea/$(basename "$header")
  "$cxx" -std=c++20 -Wshadow -Wconversion "${strict[@]}" -x c++ - <<<"#include <$name>"
  count=$((count + 1))
done
for standard in c11 c17; do
  "$cc" -std=$standard -Wstrict-prototypes "${strict[@]}" -x c - <<<"#include <fovea/fovea_c.h>"
done
echo "$count headers"
