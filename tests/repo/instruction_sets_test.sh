#!/usr/bin/env bash
# instruction_sets_test.sh OBJECT...: files compiled for AVX2 or AVX-512 share no function with the
# rest. An inline function that such a file emits is a weak symbol; the linker may keep that copy for
# the whole program, which then dies of an illegal instruction on an older CPU. Mark such functions
# `static` or [[gnu::always_inline]], or move the code to a file that is compiled once.
set -euo pipefail
failed=0
for object in "$@"; do
  if nm -C "$object" | grep -E '^[0-9a-f]+ [WVuw] ' | grep -v 'DW.ref.__gxx_personality_v0'; then
    echo "FAILED: $object defines these for the whole program"
    failed=1
  fi
done
echo "$# objects"
exit $failed
