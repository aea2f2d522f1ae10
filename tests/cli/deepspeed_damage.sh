#!/usr/bin/env bash
# Possible damage in the folder of a DeepSpeed save, each with its exit code and a message with the file.
. "$(dirname "$0")/common.sh"
saves="$SHARD_DATA/deepspeed"
optimizer=global_step2/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt

copied() { # copied SAVE: a fresh copy of it as ./save
  rm -rf save
  cp -r "$saves/$1" save
  chmod -R u+w save
}

# change_a_byte FILE: one of a tensor's elements.
change_a_byte() {
  python3 - "$1" <<'END' || fail "no file to damage"
import sys, zipfile
path = sys.argv[1]
entry = next(each for each in zipfile.ZipFile(path).infolist() if "/data/" in each.filename and each.file_size > 8)
with open(path, "r+b") as file:
    file.seek(entry.header_offset + 26)
    name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
    file.seek(entry.header_offset + 30 + name + extra)
    byte = file.read(1)[0]
    file.seek(-1, 1)
    file.write(bytes([byte ^ 1]))
END
}

# A folder with both `latest` and `latest_universal`: two checkpoints, of which --from selects one.
copied stage1
expect 0 convert "$saves/stage1" -o universal --to deepspeed-universal
cp -r universal/global_step2 save/global_step2_universal
printf global_step2_universal >save/latest_universal
for verb in inspect verify; do
  expect 4 "$verb" save
  holds err "matches 2 formats: deepspeed, deepspeed-universal"
  holds err "--from deepspeed-universal"
done
for format in deepspeed deepspeed-universal; do
  expect 0 inspect save --from "$format" --json
  [ "$(jq -r .format out)" = "$format" ] || fail "--from $format read another"
done
expect 0 diff save "$saves/stage1" --from deepspeed

# `latest` names a folder that is gone, or nothing.
for tag in global_step9 ""; do
  copied stage1
  printf "%s" "$tag" >save/latest
  expect 4 inspect save
  holds err "inspect save/global_step2"
  holds err "its file 'latest' $([ -n "$tag" ] && echo "names '$tag', which does not exist" || echo "is empty")"
  expect 3 inspect save --from deepspeed
  holds err "'latest' names a folder that does not exist"
done

# Two saves mixed, a rank missing, one too many, a byte changed.
copied stage2_robin
cp -f "$saves/stage2_tied/$optimizer" "save/$optimizer"
expect 4 inspect save
holds err "rank_1"
copied stage2_tied
rm "save/$optimizer"
expect 3 inspect save
holds err "rank_1"
expect 3 verify save
holds out "missing_file $optimizer"
copied stage2_tied
cp "save/$optimizer" save/global_step2/bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt
expect 4 inspect save
holds err "rank_3"
expect 1 verify save
holds out "world_size_mismatch"
copied stage2_tied
change_a_byte "save/$optimizer"
expect 1 verify save
holds out "crc_mismatch $optimizer"
# The last rank's flat buffers end with padding, which is in no tensor.
copied stage1
change_a_byte save/global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt
expect 4 gather save -o x.safetensors --objects drop
holds err "zero_pp_rank_1_mp_rank_00_optim_states.pt"
holds err "do not match the checksum"
copied stage2_tied
python3 - "save/$optimizer" <<'END' || fail "no record to remove"
import sys, zipfile
path = sys.argv[1]
with zipfile.ZipFile(path) as whole:
    kept = [(each.filename, whole.read(each)) for each in whole.infolist() if not each.filename.endswith("/data/1")]
with zipfile.ZipFile(path, "w") as out:
    for name, content in kept:
        out.writestr(name, content)
END
expect 1 verify save
holds out "missing_file $(basename "$optimizer")"
holds out "data/1 is missing"

# Files of ranks that changed places: torch notes in each under which name it was saved.
swapped=swapped/$(basename "$(ls -d "$SHARD_DATA"/deepspeed/stage2_tied/global_step*)")
cp -r "$SHARD_DATA/deepspeed/stage2_tied" swapped
one=$swapped/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt other=$swapped/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt
mv "$one" kept && mv "$other" "$one" && mv kept "$other"
expect 4 gather swapped -o x.safetensors --objects drop
holds err "saved under another rank's name"
expect 1 verify swapped
holds out "rank_mismatch"

# A copy of another rank's file that does not record its name has the same elements.
copied stage2_tied
sed 's/bf16_zero_pp_rank_0/some_zero_pp_rank_0/g' "save/${optimizer/rank_1/rank_0}" >"save/$optimizer"
for verb in "verify save" "gather save -o x.safetensors --objects drop --force"; do
  expect 0 $verb
  cat out err | grep -q "rank_0_mp_rank_00_optim_states.pt and bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt contain the same elements" ||
    fail "$verb does not warn of the copy"
done

# Other files are still checked if one is truncated, so a changed byte in a different file is found as well.
copied stage2_tied
change_a_byte "save/$optimizer"
truncate -s -100 "save/global_step2/mp_rank_00_model_states.pt"
expect 1 verify save
holds out "crc_mismatch $optimizer"
holds out "mp_rank_00_model_states.pt"
