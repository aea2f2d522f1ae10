#!/usr/bin/env bash
# What inspect says of aliases and of repeated names holds for the names that were asked for.
. "$(dirname "$0")/common.sh"
state="$SHARD_DATA/torch/state.pt"

names() { python3 -c 'import json
for t in json.load(open("out"))["tensors"]: print(t["name"], t["alias_of"], t.get("path"))'; }
expect 0 inspect "$state" --json
plain=$(names | awk '$2 != "None" { print $1, $2 }')
[ -n "$plain" ] || fail "the golden file has an alias"
expect 0 inspect "$state" --json --add-prefix model.
[ "$(names | awk '$2 != "None" { print $1, $2 }')" = "$(sed 's/[^ ]*/model.&/g' <<<"$plain")" ] || fail "prefixed aliases"
alias=${plain%% *}
expect 0 inspect "$state" --json --include "$alias"
[ "$(names | awk '{ print $2 }')" = None ] || fail "an alias of a tensor that is not there"
