#!/usr/bin/env bash
# A format without objects refuses them by name; the hint is the line to run, and it runs.
. "$(dirname "$0")/common.sh"

expect 8 gather "$SHARD_DATA/torch/nested.pt" -o model.safetensors
holds err "safetensors cannot store objects"
holds err "--objects drop"
[ ! -e model.safetensors ] || fail "model.safetensors is there"
line=$(sed -n 's/^  hint: shardctl //p' err)
eval "\"\$SHARDCTL\" $line" 2>/dev/null || fail "the hinted line does not work: $line"
[ -e model.safetensors ] || fail "the hinted line wrote nothing"

# Tensors that cannot be written are not objects to be dropped: the hinted line leaves all of them out, and it runs.
for target in safetensors dcp; do
  expect 8 convert "$SHARD_DATA/torch/sparse.pt" -o dense-$target --to $target
  line=$(sed -n 's/^  hint: shardctl //p' err)
  eval "\"\$SHARDCTL\" $line" 2>/dev/null || fail "the hinted line does not work: $line"
  expect 0 inspect dense-$target --include w
done
