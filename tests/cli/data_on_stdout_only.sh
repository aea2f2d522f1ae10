#!/usr/bin/env bash
# stdout carries data only; words for people go to stderr.
. "$(dirname "$0")/common.sh"
model m.safetensors 4096

expect 0 gather m.safetensors -o out.safetensors
is_empty out
holds err "wrote out.safetensors"
expect 0 -q gather m.safetensors -o quiet.safetensors
is_empty out
is_empty err
expect 0 gather m.safetensors -o json.safetensors --json -q
is_empty err
python3 -m json.tool <out >/dev/null || fail "no JSON"
expect 3 inspect absent
is_empty out
holds err "shardctl: error: absent"
