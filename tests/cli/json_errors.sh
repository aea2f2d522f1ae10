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

# Without a verb: the error too is a document.
expect 2 --json
[ "$(field schema)" = shardctl.error/1 ] || fail "schema"
[ "$(field verb)" = None ] || fail "verb"
holds err "shardctl: error: the command line has no verb"
SHARDCTL_JSON=1 expect 2
[ "$(field code)" = 2 ] || fail "code"
expect 2
is_empty out
holds err "Usage: shardctl"
