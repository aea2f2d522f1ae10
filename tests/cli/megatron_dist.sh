#!/usr/bin/env bash
# Checkpoints of Megatron-core are ordinary ones: read from the save folder or one iteration, cut, joined, and written again.
. "$(dirname "$0")/common.sh"
save="$SHARD_DATA/megatron/dense_tp2"

expect 0 inspect "$save" --json
[ "$(jq -r '"\(.format) \(.world_size) \(.tensor_count)"' out)" = "megatron-dist 2 9" ] || fail "another format, world or count"
[ "$(jq -r '.objects[] | select(.name == "args.num_query_groups").value' out)" = 2 ] || fail "arguments are not objects"
expect 0 verify "$save"
expect 0 diff "$save" "$save.safetensors" --objects drop
expect 0 diff "$save/iter_0000007" "$save.safetensors" --objects drop
expect 0 gather "$save" -o whole.safetensors --objects drop
expect 0 diff whole.safetensors "$save.safetensors"

# Both forms of the common data, with everything kept.
for version in 0.18 0.19; do
  expect 0 convert "$save" -o "core$version" --to megatron-dist --core-version "$version"
  expect 0 diff "$save" "core$version"
  expect 0 verify "core$version"
done
[ -e core0.18/common.pt ] && [ ! -e core0.19/common.pt ] || fail "common.pt is in the wrong one"
expect 0 inspect core0.19 --json
[ "$(jq -r '.objects[] | select(.name == "args.num_query_groups").value' out)" = 2 ] || fail "arguments of 0.19 are not objects"
expect 0 reshard core0.19 -o cut --ranks 3
expect 0 diff "$save" cut

# What nobody can write is named, and left out where that is asked for.
expect 8 convert "$SHARD_DATA/megatron/dense" -o none --to megatron-dist
holds err "args.activation_func"
expect 0 convert "$SHARD_DATA/megatron/dense" -o rest --to megatron-dist --exclude args.activation_func --exclude args.init_method
expect 0 diff "$SHARD_DATA/megatron/dense" rest --exclude args.activation_func --exclude args.init_method

# What Megatron-core asks for and the source lacks is made up, and said.
expect 0 convert whole.safetensors -o made --to megatron-dist
holds err "made up"
expect 0 diff made whole.safetensors --objects drop
expect 2 convert whole.safetensors -o none --to dcp --core-version 0.18
holds err "--core-version is for megatron-dist"

# Hashes of the iteration's files are compared, also through the folder above it.
cp -r "$save" hashed
iteration=hashed/iter_0000007
(cd $iteration && sha256sum .metadata __0_0.distcp) | jq -Rn '{algorithm: "sha256", files: ([inputs | split("  ") | {(.[1]): .[0]}] | add)}' >integrity.json
mv integrity.json $iteration/
expect 0 verify hashed
printf 'x' | dd of=$iteration/__0_0.distcp bs=1 seek=3 conv=notrunc status=none
for source in hashed $iteration; do
  expect 1 verify "$source" --json
  [ "$(jq -r '[.findings[].kind] | index("hash_mismatch") != null' out)" = true ] || fail "no hash_mismatch in $source"
done
