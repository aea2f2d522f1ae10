#!/usr/bin/env bash
# With --json every failure is one shardctl.error/1 document on stdout and three lines on stderr.
. "$(dirname "$0")/common.sh"
model m.safetensors 4096

field() { python3 -c 'import json, sys; print(json.load(open("out"))[sys.argv[1]])' "$1"; }
expect 3 inspect absent --json
[ "$(field schema)" = shardctl.error/1 ] || fail "schema"
[ "$(field verb)" = inspect ] || fail "verb"
[ "$(field file)" = absent ] || fail "file"
holds err "shardctl: error:"
expect 2 split m.safetensors -o x --rnaks 2 --json
[ "$(field hint)" = "did you mean --ranks?" ] || fail "hint"
