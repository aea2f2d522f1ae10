#!/usr/bin/env bash
# A universal checkpoint is read and written like that of DeepSpeed's own ds_to_universal, file by file.
. "$(dirname "$0")/common.sh"
saves="$SHARD_DATA/deepspeed"

for save in stage1 stage3; do
  expect 0 convert "$saves/$save" -o "made-$save" --to deepspeed-universal
  [ "$(cat "made-$save/latest_universal")" = global_step2 ] || fail "latest_universal does not name the folder"
  expect 0 diff "$saves/universal_of_$save" "made-$save" --objects drop
  expect 0 verify "made-$save"
  expect 0 gather "made-$save" -o "made-$save.safetensors" --objects drop
  expect 0 diff "made-$save.safetensors" "$saves/$save.safetensors"
  real="$saves/universal_of_$save/global_step2"
  for file in $(cd "$real" && find zero -name '*.pt' ! -name optimizer_state.pt); do
    expect 0 diff "$real/$file" "made-$save/global_step2/$file" --from torch
  done
  [ "$(cd "$real" && find . -type f | sort)" = "$(cd "made-$save/global_step2" && find . -type f | sort)" ] ||
    fail "other files than ds_to_universal makes of $save"
done
expect 0 inspect "$saves/universal_of_stage1" --json
[ "$(jq -r '"\(.format) \(.world_size) \(.tensor_count)"' out)" = "deepspeed-universal null 24" ] || fail "read as another"

# Trainers do not write the file that the engine requires; it exists.
expect 0 inspect made-stage1/global_step2/mp_rank_00_model_states.pt --from torch --json
[ "$(jq -r '.objects[] | select(.name == "universal_checkpoint_info.universal_checkpoint_version").value' out)" = 0.2 ] ||
  fail "no version of the universal checkpoint"

expect 8 convert made-stage1 -o none --to deepspeed-universal
holds err "needs a deepspeed source"
expect 2 reshard "$saves/stage1" -o none --to deepspeed-universal --ranks 2
[ ! -e none ] || fail "something was written"
rm made-stage1/global_step2/zero/a.bias/fp32.pt
expect 3 inspect made-stage1
holds err "a.bias"

# A parameter that the model's states list and whose folder is lost. The module's weights are still there.
for save in stage3 stage1; do
  rm -rf lost
  cp -r "$saves/universal_of_$save" lost
  chmod -R u+w lost
  rm -r lost/global_step2/zero/a.bias
  expect 3 gather lost -o none.safetensors --objects drop
  holds err "the folder of a parameter is missing"
  holds err "zero/a.bias"
  expect 1 verify lost
  holds out "missing_file"
  holds out "zero/a.bias"
done
expect 0 gather lost -o module.safetensors --objects drop --weights 16bit

# DeepSpeed 0.19 also writes folders for buffers, frozen parameters and further names of tied ones, in float32.
for save in stage1_frozen stage2_tied; do
  expect 0 convert "$saves/$save" -o "copies-$save" --to deepspeed-universal
  expect 0 gather "copies-$save" -o "before-$save.safetensors" --objects drop
  expect 0 inspect "copies-$save" --json
  zero="copies-$save/global_step2/zero"
  any=("$zero"/*/fp32.pt)
  copies=0
  for name in $(jq -r '.tensors[].name | select(startswith("optimizer.") | not)' out); do
    [ ! -d "$zero/$name" ] || continue
    mkdir "$zero/$name"
    cp "${any[0]}" "$zero/$name"
    copies=$((copies + 1))
  done
  [ "$copies" -ge 2 ] || fail "$save has no buffers"
  expect 0 verify "copies-$save"
  holds out "good"
  expect 0 gather "copies-$save" -o "after-$save.safetensors" --objects drop
  expect 0 diff "before-$save.safetensors" "after-$save.safetensors"
done

# A rank's file of the model's states, without which DeepSpeed cannot load stage 3.
rm -rf lost
cp -r "$saves/universal_of_stage3" lost
chmod -R u+w lost
rm lost/global_step2/zero_pp_rank_1_mp_rank_00_model_states.pt
expect 0 inspect lost
holds err "files of the model's states of 1 rank are missing: zero_pp_rank_1"
expect 1 verify lost
holds out "zero_pp_rank_1_mp_rank_00_model_states.pt"
rm -rf lost

# A state that most parameters have and one has lost is named by every verb, and verify finds it.
cp -r "$saves/universal_of_stage1" lost
lost=lost/global_step2/zero/$(ls lost/global_step2/zero | grep weight | head -1)
rm "$lost/exp_avg.pt"
expect 0 gather lost -o lost.safetensors --objects drop
holds err "lack files of states that most parameters have: '$(basename "$lost")'"
expect 1 verify lost
holds out "missing_file"
holds out "$(basename "$lost")/exp_avg.pt"
rm -rf lost

# Two parameters' files that were exchanged: their shapes show it, also where other facts do not.
for file in exp_avg fp32; do
  cp -r "$saves/universal_of_stage1" lost
  chmod -R u+w lost
  (cd lost/global_step2/zero && mv a.weight/$file.pt x && mv b.weight/$file.pt a.weight/$file.pt && mv x b.weight/$file.pt)
  expect 4 gather lost -o none.safetensors --objects drop
  holds err "zero/a.weight/$file.pt: tensor 'a.weight': the tensor does not have the shape of its parameter"
  holds err "expected [3, 5], found [5, 3]"
  expect 1 verify lost --json
  jq -e --arg file "$file.pt" '[.findings[] | [.kind, .file]] | sort ==
    [["shape_mismatch", "zero/a.weight/\($file)"], ["shape_mismatch", "zero/b.weight/\($file)"]]' out >/dev/null ||
    fail "not both files are named"
  rm -rf lost
done

# A file of one size in the place of another.
cp -r "$saves/universal_of_stage1" lost
chmod -R u+w lost
cp lost/global_step2/zero/a.bias/step.pt lost/global_step2/zero/a.weight/exp_avg.pt
expect 4 gather lost -o none.safetensors --objects drop
holds err "zero/a.weight/exp_avg.pt"
rm -rf lost
