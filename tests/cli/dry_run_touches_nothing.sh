#!/usr/bin/env bash
# --dry-run reports exactly the files that a run would write, and writes nothing.
. "$(dirname "$0")/common.sh"
model m.safetensors 4096

expect 0 split m.safetensors -o parts --ranks 2 --dry-run --json
[ ! -e parts ] || fail "parts is there"
cp out plan
expect 0 split m.safetensors -o parts --ranks 2
python3 - <<'PYTHON' || fail "the plan and the files differ"
import json, os
plan = {f["path"]: f["bytes"] for f in json.load(open("plan"))["files"]}
assert plan == {name: os.path.getsize("parts/" + name) for name in os.listdir("parts")}, plan
PYTHON
