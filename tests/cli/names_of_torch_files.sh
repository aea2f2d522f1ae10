#!/usr/bin/env bash
# inspect's statements about aliases and repeated names apply to the selected names.
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

# A dtype that torch lacks is refused with the tensor that has it.
header='{"f":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}}'
{ little_endian ${#header} && printf %s "$header" && printf xyz; } >six.safetensors
for to in torch torch-ranks dcp; do
  expect 8 convert six.safetensors -o six --to $to
  holds err "tensor 'f' is float6_e2m3fn, a dtype that torch does not have"
  holds err "--exclude f"
done
