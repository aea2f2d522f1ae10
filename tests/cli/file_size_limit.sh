#!/usr/bin/env bash
# An output that may not grow (here: a file size limit) is exit code 6, without leftovers.
. "$(dirname "$0")/common.sh"
model m.safetensors $((4 << 20))
mkdir target

(ulimit -f 1024 && expect 6 gather m.safetensors -o target/x.safetensors)
holds err "error: target/x.safetensors:"
[ -z "$(ls -A target)" ] || fail "something stayed: $(ls -A target)"
