#!/usr/bin/env bash
# A save of DeepSpeed is an ordinary source: masters and moments by name, or the module's 16-bit weights.
. "$(dirname "$0")/common.sh"
save="$SHARD_DATA/deepspeed/stage2_tied"

expect 0 inspect "$save" --json
[ "$(jq -r '"\(.format) \(.world_size) \(.tensor_count)"' out)" = "deepspeed 3 22" ] || fail "another format, world or count"
expect 0 diff "$save" "$save.safetensors" --objects drop
expect 0 verify "$save"
expect 0 reshard "$save" -o dcp --ranks 2 --to dcp
expect 0 diff "$save" dcp

expect 0 gather "$save" -o half.safetensors --weights 16bit --exclude 'optimizer.**' --objects drop
[ "$("$SHARDCTL" cat half.safetensors a.weight --format raw | wc -c)" = 30 ] || fail "15 elements do not take 30 bytes"
expect 8 gather "$SHARD_DATA/deepspeed/stage3" -o none.safetensors --weights 16bit --objects drop
holds err "stage 3"
