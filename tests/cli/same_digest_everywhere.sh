#!/usr/bin/env bash
# One model has one digest, in every format and layout that it can be in.
. "$(dirname "$0")/common.sh"
demo="$SHARD_DATA/demo/ckpt"

expect 0 digest "$demo"
cp out wanted
same() {
  expect 0 digest "$1"
  cmp -s out wanted || fail "the digest of $1 differs"
}
# write NAME ARGUMENTS...: writes the model there, and looks at its digest.
write() {
  local name=$1
  shift
  expect 0 "$@" -o "$name"
  same "$name"
}
place=(--place '**.down.weight=R,S(1)' --place '**=S(0),R')

write whole.safetensors gather "$demo" --objects drop
write folder split whole.safetensors --max-shard-size 4KB
write whole.pt gather "$demo"
write torch-folder split whole.safetensors --shards 3 --to torch
write dcp split whole.pt --ranks 3
write dcp-mesh split whole.pt --mesh dp=2,tp=2 "${place[@]}"
write dcp-columns reshard dcp-mesh --ranks 5 --dim -1
write dcp-hf split whole.safetensors --ranks 3 --to dcp-hf
write dcp-hf-mesh reshard dcp-hf --mesh dp=2,tp=2 "${place[@]}"
write sharded split whole.pt --ranks 4 --to torch-ranks
write sharded-columns reshard sharded --ranks 3 --dim 1
write dtensor split whole.pt --mesh dp=2,tp=2 "${place[@]}" --to torch-ranks
write dtensor-as split whole.pt --ranks 5 --to torch-ranks --as dtensor
write plain split whole.pt --mesh dp=2,tp=2 "${place[@]}" --to torch-ranks --as plain
write plain-ranks split whole.pt --ranks 3 --to torch-ranks --as plain
for each in sharded dtensor plain dcp-hf; do
  write "$each.again.safetensors" gather $each --objects drop
  write "$each.dcp" convert $each --to dcp
done
write sharded.as.dtensor convert sharded --to torch-ranks --as dtensor
