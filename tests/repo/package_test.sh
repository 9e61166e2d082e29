#!/usr/bin/env bash
# package_test.sh BUILD static|shared CC CXX: an installed Fovea serves programs outside the tree,
# found by CMake and by pkg-config, also after the prefix has been moved.
set -euo pipefail
build=$1 kind=$2 cc=$3 cxx=$4
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
quietly() {
  if ! "$@" >"$folder/log" 2>&1; then
    cat "$folder/log"
    echo "FAILED: $*"
    exit 1
  fi
}

# install
if [[ "$kind" == shared ]]; then
  # The library alone, in a folder that is kept: only what has changed is compiled again.
  quietly cmake -S "$root" -B "$build/shared" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" -DBUILD_SHARED_LIBS=ON \
    -DFOVEA_BUILD_TESTS=OFF -DFOVEA_BUILD_CLI=OFF -DFOVEA_BUILD_LM=OFF
  quietly cmake --build "$build/shared"
  build=$build/shared
fi
quietly cmake --install "$build" --prefix "$folder/first"
mv "$folder/first" "$folder/prefix"
prefix=$folder/prefix
for file in include/fovea/fovea.h include/fovea/export.h share/doc/Fovea/LICENSE; do
  [[ -f "$prefix/$file" ]] || { echo "FAILED: $file is not installed"; exit 1; }
done
if grep -r -l -F -e "$root" -e "$folder/first" "$prefix" --include='*.cmake' --include='*.pc'; then
  echo "FAILED: these files hold paths of the machine that built them"
  exit 1
fi

# CMake
quietly cmake -S "$root/examples" -B "$folder/cmake" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx"
quietly cmake --build "$folder/cmake"
"$folder/cmake/attention"
"$folder/cmake/attention_c"

# pkg-config
export PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name fovea.pc)")
export LD_LIBRARY_PATH=$(dirname "$PKG_CONFIG_PATH")
pkg-config --exists 'fovea >= 0.1'
read -r -a cflags <<<"$(pkg-config --cflags fovea)"
read -r -a libs <<<"$(pkg-config --libs fovea)"
quietly "$cxx" -std=c++20 "$root/examples/attention.cpp" "${cflags[@]}" "${libs[@]}" -o "$folder/a"
quietly "$cc" -std=c11 "$root/examples/attention_c.c" "${cflags[@]}" "${libs[@]}" -o "$folder/b"
"$folder/a"
"$folder/b"
echo "the $kind package serves C and C++ programs through CMake and pkg-config"
