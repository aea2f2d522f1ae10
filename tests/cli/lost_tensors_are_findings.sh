#!/usr/bin/env bash
# A loss of a repair is a finding of verify, in any later format of the repaired checkpoint.
. "$(dirname "$0")/common.sh"
model whole.safetensors 65536
head -c 20000 whole.safetensors >cut.safetensors
expect 0 repair cut.safetensors -o repaired.safetensors -v
holds err "repair: check"
holds err "w"
expect 1 verify repaired.safetensors
holds out "a repair could not recover it"
expect 1 verify repaired.safetensors --json
holds out '"kind": "gap"'
holds out '"tensor": "w"'
expect 0 verify whole.safetensors
