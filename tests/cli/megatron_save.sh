#!/usr/bin/env bash
# A save of Megatron-LM is an ordinary source of whole tensors, masters and moments, wherever its ranks have them. It is not written.
. "$(dirname "$0")/common.sh"
saves="$SHARD_DATA/megatron_legacy"

expect 0 inspect "$saves/dense" --json
[ "$(jq -r '"\(.format) \(.world_size) \(.tensor_count)"' out)" = "megatron 4 104" ] || fail "another format, world or count"
for save in dense experts uneven; do
  expect 0 diff "$saves/$save" "$saves/$save.safetensors" --objects drop --exclude '**.step'
  expect 0 verify "$saves/$save"
  expect 0 reshard "$saves/$save" -o "$save.dcp" --ranks 3 --to dcp
  expect 0 diff "$saves/$save/iter_0000005" "$save.dcp"
  expect 0 gather "$saves/$save/iter_0000005" -o "$save.pt"
  ! grep -q "other files" err || fail "folders of ranks are not other files"
  expect 0 diff "$saves/$save" "$save.pt"
done

expect 0 export "$saves/dense" -o model
expect 0 diff "$saves/dense.safetensors" model --exclude 'optimizer.**'
# The maps of Megatron-Core's models apply as they do to torch_dist; a save does not state the vocabulary.
for of in dense:llama:38 experts:qwen2_moe:55; do
  IFS=: read -r save model count <<<"$of"
  expect 0 export "$saves/$save" -o "$model" --map "megatron:$model" --set vocab=15
  expect 0 inspect "$model" --json
  [ "$(jq '.tensor_count' out)" = "$count" ] || fail "$model has another number of tensors"
done
mkdir run
cp -r "$saves/dense/iter_0000005" run/iter_0000005
cp -r "$saves/dense/iter_0000005" run/iter_0000010
expect 2 export run -o none
printf 10 > run/latest_checkpointed_iteration.txt
expect 0 export run -o last
expect 0 diff model last

# A norm with a different copy on one rank.
expect 0 inspect run --json
read -r file offset < <(jq -r '.tensors[] | select(.name == "decoder.layers.0.input_layernorm.weight").chunks[]
  | select(.file | contains("mp_rank_01_000")) | "\(.file) \(.byte_offset)"' out)
printf '\x11' | dd of="run/$file" bs=1 seek="$offset" conv=notrunc status=none
expect 1 verify run --json
jq -e '.findings | any(.kind == "replica_mismatch" and .tensor == "decoder.layers.0.input_layernorm.weight")' out > found ||
  fail "the other copy is not found"

# The states of one rank's optimizer in the place of another's.
cp -r "$saves/experts" copied && chmod -R u+w copied
cp copied/iter_0000005/mp_rank_00_000/distrib_optim.pt copied/iter_0000005/mp_rank_01_000/
expect 0 verify copied
holds out "mp_rank_00_000/distrib_optim.pt and iter_0000005/mp_rank_01_000/distrib_optim.pt contain the same elements"

expect 8 inspect run/iter_0000010/mp_rank_00_000
holds err "one rank of a Megatron-LM checkpoint"
expect 8 reshard "$saves/dense" -o none --to megatron --ranks 2
holds err "cannot write megatron"
