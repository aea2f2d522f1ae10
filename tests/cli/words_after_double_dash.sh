#!/usr/bin/env bash
# After -- everything is a path, even a word like an option or a verb.
. "$(dirname "$0")/common.sh"
model ./--json 4096
cp ./--json inspect

expect 0 inspect -- --json
holds out "--json: safetensors"
expect 0 inspect inspect
holds out "inspect: safetensors"
expect 0 diff -- --json inspect
