#!/usr/bin/env bash
# A save of DeepSpeed is written for any number of ranks, with every object, and comes back as it was, file by file.
. "$(dirname "$0")/common.sh"
saves="$SHARD_DATA/deepspeed"

# Each file has the content that DeepSpeed wrote, for any number of ranks in between.
same_files() {
  for file in "$1"/global_step2/*; do
    expect 0 diff "$file" "$2/global_step2/$(basename "$file")" --from torch
  done
  [ "$(ls "$1/global_step2")" = "$(ls "$2/global_step2")" ] || fail "other files than in $1"
}
for save in stage1 stage1_frozen stage2_tied stage3 stage3_groups; do
  expect 0 convert "$saves/$save" -o "same-$save" --to deepspeed
  same_files "$saves/$save" "same-$save"
  ranks="$(ls "$saves/$save"/global_step2/*optim_states.pt | wc -l)"
  expect 0 reshard "$saves/$save" -o "five-$save" --ranks 5
  expect 0 verify "five-$save"
  expect 0 reshard "five-$save" -o "back-$save" --ranks "$ranks"
  same_files "$saves/$save" "back-$save"
done
[ "$(cat same-stage1/latest)" = global_step2 ] || fail "latest does not name the folder"
(cd "$saves/stage1/global_step2" && "$SHARDCTL" -q reshard . -o "$work/from-here" --ranks 2)
diff -r same-stage1 from-here || fail "the name of the working directory counts"

# 74 elements over 4 ranks: padded to 80, slices of 20, the last with only 14 elements.
expect 0 reshard "$saves/stage2_tied" -o four --ranks 4
expect 0 diff "$saves/stage2_tied" four
[ "$(ls four/global_step2/*optim_states.pt | wc -l)" = 4 ] || fail "not four files of optimizer states"
expect 0 inspect four/global_step2/bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt --from torch --json
place=optimizer_state_dict
[ "$(jq -c "[.tensors[] | select(.name | test(\"fp32|exp_avg\$\")).shape[0]]" out)" = "[20,14]" ] || fail "wrong lengths"
value() { jq -r --arg name "$place.$1" '.objects[] | select(.name == $name).value' out; }
[ "$(value partition_count.0) $(value group_paddings.0)" = "4 6" ] || fail "wrong partition_count or group_paddings"
expect 0 inspect four/global_step2/mp_rank_00_model_states.pt --from torch --json
[ "$(jq -r '.objects[] | select(.name == "dp_world_size").value' out)" = 4 ] || fail "another dp_world_size"

# Round robin distributes parameters over the ranks: of seven, rank 0 of 3 begins with the first and the fourth.
expect 0 reshard "$saves/stage2_robin" -o robin --ranks 3
expect 0 diff "$saves/stage2_robin" robin
expect 0 inspect robin/global_step2/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt --from torch --json
[ "$(jq -c '[.objects[].name | select(test("mappings")) | ltrimstr("optimizer_state_dict.param_slice_mappings.0.")]' out)" = \
  '["embed.weight","norm.weight"]' ] || fail "rank 0 of 3 holds other parameters"
expect 0 reshard robin -o robin-back --ranks 2
for file in "$saves"/stage2_robin/global_step2/*; do
  expect 0 diff "$file" "robin-back/global_step2/$(basename "$file")" --from torch --objects drop
done

# Sub-groups of stage 3 are limited by the elements of one rank: the fewer ranks, the more.
expect 0 reshard "$saves/stage3_groups" -o one --ranks 1
expect 0 inspect one/global_step2/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt --from torch --json
[ "$(jq '[.tensors[].name | select(test("fp32_flat_groups"))] | length' out)" = 3 ] || fail "not three sub-groups"

expect 8 reshard "$saves/stage1" -o none --ranks 2 --exclude 'head.**'
holds err "cannot write deepspeed with --exclude"
expect 8 convert "$saves/stage1.safetensors" -o none --to deepspeed
holds err "needs a deepspeed source"
expect 8 gather "$saves/stage1" -o none --to deepspeed
holds err "gather cannot write deepspeed"
# Saves with experts or a pipeline can only become a different format.
for save in experts_stage2 pipeline_stage1; do
  expect 8 reshard "$saves/$save" -o none --ranks 2
  holds err "hint: shardctl reshard $saves/$save -o none --ranks 2 --to dcp"
  expect 8 convert "$saves/$save" --to deepspeed-universal -o none
  holds err "hint: shardctl convert $saves/$save -o none --to dcp"
  expect 0 reshard "$saves/$save" -o "dcp-$save" --ranks 2 --to dcp
  expect 0 diff "$saves/$save" "dcp-$save"
done
expect 2 reshard "$saves/stage1" -o none --shards 2
[ ! -e none ] || fail "something was written"
