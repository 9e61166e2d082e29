#!/usr/bin/env bash
# symbols_test.sh SHARED_LIBRARY STATIC_LIBRARY: the libraries know neither PyTorch nor Python, need
# nothing but the C and C++ run time, and the shared one exports the public API and nothing else.
set -euo pipefail
shared=$1
static=$2
failed=0
fail() {
  echo "FAILED: $1"
  failed=1
}

if ldd "$shared" | awk '{ print $1 }' | grep -E -i 'torch|c10|aten|python'; then
  fail "the shared library is linked to these"
fi
for library in "$shared" "$static"; do
  if nm -C "$library" 2>/dev/null | grep -E "(^|[^a-zA-Z_])(torch::|c10::|at::|_?Py[A-Z_])"; then
    fail "$library has these symbols"
  fi
done

# Needed libraries.
while read -r needed; do
  case "$needed" in
    libstdc++.so.* | libm.so.* | libgcc_s.so.* | libc.so.* | libpthread.so.* | libdl.so.* | librt.so.* | \
      ld-linux*.so.* | libasan.so.* | libubsan.so.* | libtsan.so.*) ;;
    *) fail "the shared library needs $needed" ;;
  esac
done < <(objdump -p "$shared" | awk '$1 == "NEEDED" { print $2 }')

# Exports: C++ names in namespace fovea (with their type information), C names fovea_*.
exports=$(nm -D -C --defined-only "$shared" | cut -d' ' -f2-)
if grep -v -E '^[A-Za-z] (fovea::|fovea_|(typeinfo|typeinfo name|vtable) for fovea::|FOVEA_[0-9.]+)' \
  <<<"$exports"; then
  fail "the shared library exports these"
fi
for name in 'fovea::forward(' 'fovea::backward(' 'fovea::Plan::make(' 'fovea::version()' \
  'fovea::Job::Job(' 'fovea_forward' 'fovea_abi_version'; do
  grep -q -F "$name" <<<"$exports" || fail "the shared library does not export $name"
done
# What is inside stays inside.
if grep -E 'fovea::(cpu|philox|build)::|fovea::(Kernel|Problem|Refusal)' <<<"$exports"; then
  fail "the shared library exports these, which are not public"
fi

echo "$(wc -l <<<"$exports") exported symbols"
exit $failed
