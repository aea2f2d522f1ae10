#!/usr/bin/env bash
# A checkpoint that torch wrote keeps its content through every format and layout.
. "$(dirname "$0")/common.sh"

# A tensor in a tuple is inside an object there, but still a tensor.
expect 0 gather "$SHARD_DATA/dcp/four_ranks" -o whole.pt
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
expect 0 diff "$SHARD_DATA/dcp/four_ranks" whole.pt --equal-nan
is_empty out
