#!/usr/bin/env bash
# Times a reshard of 1 GiB by columns with and without a GPU, and cp: best of 5 runs each. SHARDCTL is the program.
. "$(dirname "$0")/../cli/common.sh"

model m.safetensors $((1 << 30))
best() {
  local label=$1 least='' i begin took
  shift
  for i in 1 2 3 4 5; do
    rm -rf to
    begin=$(date +%s%N)
    "$@" >/dev/null 2>&1 || fail "$label"
    took=$((($(date +%s%N) - begin) / 1000000))
    [ -n "$least" ] && [ "$least" -le "$took" ] || least=$took
  done
  printf '%-50s %6s ms\n' "$label" "$least"
}
best "cp" cp m.safetensors to
for memory in 64MiB 1GiB; do
  for device in cpu cuda; do
    best "split --dim 1, $memory, --device $device" "$SHARDCTL" split m.safetensors -o to --to torch-ranks --ranks 4 --dim 1 \
      --max-memory "$memory" --no-fsync --device "$device"
  done
done
