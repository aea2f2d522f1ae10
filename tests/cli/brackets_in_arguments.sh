#!/usr/bin/env bash
# Brackets in arguments are used unchanged: in paths, in slices of a tensor without a name, in patterns.
. "$(dirname "$0")/common.sh"
bare="$SHARD_DATA/torch/bare.pt"

expect 0 cat "$bare" ''
cp out whole
expect 0 cat "$bare" '[0:1]'
[ "$(wc -l <out)" = 1 ] || fail "not one row"
cmp -s out <(head -n 1 whole) || fail "not the first row"
mkdir '[a,b]'
model '[a,b]/[m].safetensors' 4096
cp '[a,b]/[m].safetensors' '[]'
for each in '[a,b]' '[a,b]/[m].safetensors' '[]'; do
  expect 0 inspect "$each"
  holds out "$each: safetensors"
done
expect 0 gather '[a,b]' -o '[out].safetensors' --include '[wx]'
expect 0 inspect '[out].safetensors'
holds out "1 tensor,"
expect 0 diff '[a,b]' '[]'
