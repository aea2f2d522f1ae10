#!/usr/bin/env bash
# Checkpoints of Megatron-Core are ordinary ones: read from the save folder or one iteration, cut, joined, and written again.
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

objects() { expect 0 inspect "$1" --json && jq -S .objects out; }

# Functions, and tensors inside objects, are carried over unread, from one form of the common data into the other.
for golden in dense objects; do
  from="$SHARD_DATA/megatron/$golden"
  for version in 0.18 0.19; do
    rm -rf there && expect 0 convert "$from" -o there --to megatron-dist --core-version "$version"
    expect 0 diff "$from" there --objects drop
    expect 0 verify there
    [ "$(objects "$from")" = "$(objects there)" ] || fail "objects of $golden differ in the form of $version"
    rm -rf back && expect 0 convert there -o back --to megatron-dist --core-version 0.18
    expect 0 diff "$from" back --objects drop
    [ "$version" = 0.18 ] && cp back/common.pt common.pt
    cmp back/common.pt common.pt || fail "common.pt of $golden is another by the way of $version"
  done
done
expect 0 reshard "$SHARD_DATA/megatron/objects" -o cut_objects --ranks 3
expect 0 diff "$SHARD_DATA/megatron/objects" cut_objects --objects drop
[ "$(objects "$SHARD_DATA/megatron/objects")" = "$(objects cut_objects)" ] || fail "objects differ after a cut"
# The average of a save and itself has the same files as its copy, with objects of unknown classes.
for golden in dense objects experts; do
  from="$SHARD_DATA/megatron/$golden"
  rm -rf copied averaged
  expect 0 convert "$from" -o copied --to megatron-dist
  expect 0 average "$from" "$from" -o averaged --optimizer
  diff -r copied averaged || fail "the average of $golden differs from its copy"
done

expect 0 convert "$SHARD_DATA/megatron/objects" -o less --to megatron-dist --exclude 'optimizer.**' --exclude args.activation_func
[ "$(objects less | jq '[.[] | select(.name | startswith("rng_state/"))] | length')" -gt 0 ] || fail "the generators' states are gone"
expect 8 convert "$SHARD_DATA/megatron/objects" -o none --to megatron-dist --exclude 'rng_state/shard_0_1.0.0.random_rng_state.2'
holds err "rng_state/shard_0_1' contains tensors"
holds err "--exclude 'rng_state/shard_0_1.**'"
expect 0 convert "$SHARD_DATA/megatron/objects" -o without_rng --to megatron-dist --exclude 'rng_state/shard_0_1.**'
expect 8 convert "$SHARD_DATA/megatron/dense" -o none --to torch
holds err "args.activation_func"

# Tensors of the optimizer that core up to 0.15 stored as runs of its ranks' blocks have their original shapes: by the
# list, or, if that was lost (reshaped), by their parameters.
for golden in reshaped reshaped_listed; do
  from="$SHARD_DATA/megatron/$golden" truth="$SHARD_DATA/megatron/reshaped.safetensors"
  expect 0 diff "$from" "$truth" --objects drop
  lacks err reshaped
  expect 0 verify "$from"
  rm -rf runs.safetensors cut_runs && expect 0 gather "$from" -o runs.safetensors --objects drop
  expect 0 diff runs.safetensors "$truth"
  expect 0 reshard "$from" -o cut_runs --ranks 3
  expect 0 diff cut_runs "$truth" --objects drop
done

# states SHAPE...: a checkpoint with "w" of [4, 6] and its states of those shapes, each of float32.
states() {
  rm -rf states && python3 - "$@" <<'P' && expect 0 convert states.safetensors -o states --to megatron-dist
import json, math, struct, sys
shapes = {"w": [4, 6]} | {f"optimizer.state.s{i}.w": json.loads(shape) for i, shape in enumerate(sys.argv[1:])}
header, end = {}, 0
for name, shape in shapes.items():
    begin, end = end, end + 4 * math.prod(shape)
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
text = json.dumps(header).encode()
open("states.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + bytes(range(end % 256)) + bytes(end - end % 256))
P
}
# The same number of elements in a shape that no blocks give: only they are refused, by name. Different numbers of
# elements are different states.
for shape in [24] [6,4] [4,6,1,1] [3,2,4] [2,3,4] [2,2,3,2]; do
  states "$shape" [4,6] [4,1] [1]
  expect 8 gather states -o none.safetensors --objects drop
  holds err "optimizer.state.s0.w"
  lacks err "optimizer.state.s1.w"
  expect 0 gather states -o "rest$shape.safetensors" --objects drop --exclude optimizer.state.s0.w
  expect 0 diff "rest$shape.safetensors" states.safetensors --exclude optimizer.state.s0.w
done
# Blocks of [2, 3] in pieces that are not runs of one.
states [2,2,6]
expect 8 gather states -o none.safetensors --objects drop
holds err "optimizer.state.s0.w"

# Only the version that core has always written is known; it is also the default.
config() {
  rm -rf versions && cp -r "$SHARD_DATA/megatron/dense_tp2/iter_0000007" versions && echo "$1" >versions/metadata.json
}
for good in '{"sharded_backend": "torch_dist"}' '{"sharded_backend": "torch_dist", "sharded_backend_version": 1, "more": [2]}'; do
  config "$good" && expect 0 inspect versions
done
for new in '"sharded_backend_version": 2' '"common_backend_version": 7' '"common_backend": "zarr"'; do
  config "{\"sharded_backend\": \"torch_dist\", $new}" && expect 8 gather versions -o none.safetensors --objects drop
  holds err metadata.json
done
for bad in '"1"' null -1 1.5 '{}'; do
  config "{\"sharded_backend_version\": $bad, \"sharded_backend\": \"torch_dist\"}" && expect 4 inspect versions
  holds err "sharded_backend_version is not a version"
done

# The values that Megatron-Core requires and the source lacks are created, with a warning.
expect 0 convert whole.safetensors -o made --to megatron-dist
holds err "filled in"
expect 0 diff made whole.safetensors --objects drop
expect 2 convert whole.safetensors -o none --to dcp --core-version 0.18
holds err "--core-version applies only to megatron-dist"

# weights FILE NAME SHAPE ...: a safetensors file of bytes.
weights() {
  python3 - "$@" <<'P'
import json, math, struct, sys
header, end = {}, 0
for name, shape in zip(sys.argv[2::2], map(json.loads, sys.argv[3::2])):
    begin, end = end, end + math.prod(shape)
    header[name] = {"dtype": "U8", "shape": shape, "data_offsets": [begin, end]}
text = json.dumps(header).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + bytes(end))
P
}
extra_states() { expect 0 inspect "$1" --json && jq -r '.objects[].name | select(contains("_extra_state"))' out; }

# The empty objects of linear layers that a load requires are created too: one for each matrix, and only for those.
weights layers.safetensors embedding.word_embeddings.weight [8,4] output_layer.weight [8,4] decoder.final_layernorm.weight [4] \
  decoder.layers.self_attention.linear_qkv.weight [2,6,4] decoder.layers.self_attention.linear_qkv.bias [2,6] \
  decoder.layers.self_attention.linear_qkv.layer_norm_weight [2,4] decoder.layers.mlp.router.weight [2,3,4] \
  decoder.layers.mlp.experts.experts.linear_fc1.weight [1,2,6,4] module.decoder.layers.7.mlp.linear_fc1.weight_w [3,4] \
  module.decoder.layers.7.mlp.linear_fc1.weight_v [3,4] mtp.layers.0.eh_proj.weight [4,8] decoder.layers.none.linear_fc2.weight [0,4,4] \
  optimizer.state.exp_avg.decoder.layers.self_attention.linear_qkv.weight [2,6,4] other.linear_fc1.weight [3,4]
expect 0 convert layers.safetensors -o layers --to megatron-dist
holds err "6 empty objects of linear layers ('_extra_state') are added"
cat >wanted <<'W'
decoder.layers.mlp.experts.experts.linear_fc1._extra_state/shard_0.0_1.2
decoder.layers.mlp.experts.experts.linear_fc1._extra_state/shard_0.1_1.2
decoder.layers.self_attention.linear_qkv._extra_state/shard_0_2
decoder.layers.self_attention.linear_qkv._extra_state/shard_1_2
module.decoder.layers.7.mlp.linear_fc1._extra_state/shard_0_1
mtp.layers.0.eh_proj._extra_state/shard_0_1
W
extra_states layers | sed 's/\.0$//' | sort -u | diff wanted - || fail "the objects are others"
expect 0 verify layers
expect 0 diff layers layers.safetensors --objects drop
# A source of this format is copied unchanged.
expect 0 convert layers -o fewer --to megatron-dist --exclude '**_extra_state**'
lacks err "are added"
[ -z "$(extra_states fewer)" ] || fail "objects were added to a source of the format"
weights many.safetensors decoder.layers.linear_fc1.weight [1048577,1,1]
expect 8 convert many.safetensors -o none --to megatron-dist
holds err "more than 1048576 linear layers"

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
