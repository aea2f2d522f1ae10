#!/usr/bin/env bash
# A limit of open files that is too low is not damage of a checkpoint: exit code 6 and the remedy, and never "damaged".
. "$(dirname "$0")/common.sh"
model m.safetensors $((1 << 20))
expect 0 split m.safetensors -o cut --ranks 6

for line in "verify cut" "gather cut -o made.safetensors" "repair cut -o made"; do
  (ulimit -n 7 && expect 6 $line)
  holds err "Too many open files"
  holds err "ulimit -n"
done
[ ! -e made ] && [ ! -e made.safetensors ] || fail "something was written"
