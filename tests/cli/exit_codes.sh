#!/usr/bin/env bash
# Each kind of failure has a different exit code, and leaves no output.
. "$(dirname "$0")/common.sh"
model m.safetensors 4096
head -c 2000 m.safetensors >cut.safetensors
echo text >notes.txt
touch there.safetensors

expect 0 inspect m.safetensors
expect 1 diff m.safetensors "$SHARD_DATA/torch/many.pt"
expect 2 inspect
expect 2 nonsense
expect 2 gather m.safetensors -o x --no-such-option
expect 3 inspect absent
expect 4 inspect cut.safetensors
expect 4 inspect notes.txt
expect 4 gather cut.safetensors -o x
expect 5 gather m.safetensors -o there.safetensors
expect 6 gather m.safetensors -o absent/folder/x.safetensors
expect 0 verify m.safetensors
expect 1 verify cut.safetensors
expect 4 verify notes.txt
expect 3 verify absent
expect 8 convert m.safetensors -o x --to megatron
expect 8 diff "$SHARD_DATA/torch/sparse.pt" "$SHARD_DATA/torch/sparse.pt"
expect 8 digest "$SHARD_DATA/torch/sparse.pt"
mkdir same other
cp "$SHARD_DATA/torch/many.pt" same/0.pt && cp "$SHARD_DATA/torch/many.pt" same/1.pt
cp "$SHARD_DATA/torch/many.pt" other/0.pt && cp "$SHARD_DATA/torch/state.pt" other/1.pt
expect 2 inspect same
expect 2 inspect same/0.pt same/1.pt
expect 4 inspect other
expect 4 inspect other/0.pt other/1.pt
[ ! -e x ] || fail "a failure left x"
expect 2 inspect ""
holds err "a source is an empty string"
expect 2 gather m.safetensors "" -o x
[ ! -e x ] || fail "a failure left x"
