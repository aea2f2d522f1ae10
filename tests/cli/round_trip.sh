#!/usr/bin/env bash
# A checkpoint that torch wrote keeps its content through every format and layout.
. "$(dirname "$0")/common.sh"

# torch puts a tensor that stands in a tuple into an object; it is listed and refused by name.
expect 8 gather "$SHARD_DATA/dcp/four_ranks" -o whole.pt
holds err "'tuple_of_tensors.0'"
expect 0 gather "$SHARD_DATA/dcp/four_ranks" -o whole.pt --exclude tuple_of_tensors.0
expect 0 convert whole.pt -o again --to dcp
expect 0 reshard again -o six --ranks 6
expect 0 reshard six -o columns --ranks 3 --dim -1
expect 0 gather columns -o model.safetensors --objects drop
expect 0 split model.safetensors -o folder --max-shard-size 1KB
expect 0 digest "$SHARD_DATA/dcp/four_ranks"
cp out digests
for each in whole.pt again six columns model.safetensors folder; do
  expect 0 digest "$each"
  cmp -s out digests || fail "the digests of $each differ"
done
expect 0 diff "$SHARD_DATA/dcp/four_ranks" whole.pt --equal-nan --exclude tuple_of_tensors.0
is_empty out
