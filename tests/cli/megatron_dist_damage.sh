#!/usr/bin/env bash
# Every file of a Megatron-Core save, missing, truncated or from another save: the finding of verify, and its file.
. "$(dirname "$0")/common.sh"
data="$SHARD_DATA/megatron"

# damaged CODE KIND FILE COMMAND: the save after COMMAND in its folder; KIND none: no finding.
damaged() {
  rm -rf save && cp -r "$data/dense_tp2/iter_0000007" save
  (cd save && eval "$4")
  expect "$1" verify save --json
  if [ "$2" = none ]; then
    [ "$(jq '.findings | length' out)" = 0 ] || fail "findings after: $4"
  else
    jq -e --arg kind "$2" --arg file "$3" 'any(.findings[]; .kind == $kind and .file == $file)' out >/dev/null ||
      fail "no $2 in $3 after: $4"
  fi
}

half='truncate -s $(($(stat -c %s $f) / 2)) $f'
other="cp $data/dense/iter_0000007"

damaged 3 missing_file .metadata 'rm .metadata'
damaged 4 bad_pickle .metadata "f=.metadata; $half"
damaged 4 bad_pickle .metadata ': >.metadata'
damaged 4 bad_pickle .metadata 'cp metadata.json .metadata'
damaged 1 extra_file __1_0.distcp "$other/.metadata ."  # A save by one rank.

damaged 4 truncated common.pt "f=common.pt; $half"
damaged 4 truncated common.pt ': >common.pt'
damaged 4 truncated common.pt 'cp metadata.json common.pt'
damaged 4 crc_mismatch common.pt 'printf X | dd of=common.pt bs=1 seek=100 conv=notrunc status=none'
damaged 1 missing_file common.pt 'rm common.pt'
expect 0 gather save -o rest.safetensors --objects drop
holds err "common.pt is missing"

# For repair, missing or damaged common data are a loss, which the result records.
for how in 'rm common.pt' ': >common.pt' 'cp metadata.json common.pt'; do
  rm -rf save mended && cp -r "$data/dense_tp2/iter_0000007" save
  tensors=$("$SHARDCTL" inspect save --json | jq .tensor_count)
  (cd save && eval "$how")
  expect 0 repair save -o mended --json
  jq -e --argjson tensors "$tensors" '[.lost[].file] == ["common.pt"] and .tensors == $tensors' out >/dev/null ||
    fail "not only common.pt is lost after: $how"
  expect 1 verify mended
  holds out "common.pt"
done
rm -rf mended

# The folder's name has the iteration.
rm -rf saves && mkdir saves && cp -r "$data/dense_tp2/iter_0000007" saves/iter_0000007 && rm saves/iter_0000007/common.pt
echo 7 >saves/latest_checkpointed_iteration.txt
for source in saves saves/iter_0000007; do
  rm -rf mended && expect 0 repair "$source" -o mended
  holds err "iteration (7, from the folder's name)"
  [ "$("$SHARDCTL" cat mended iteration)" = 7 ] || fail "iteration of $source"
done
mv saves/iter_0000007 renamed && rm -rf mended && expect 0 repair renamed -o mended
[ "$("$SHARDCTL" cat mended iteration)" = 0 ] || fail "iteration of a folder without one in its name"
rm -rf mended renamed saves

# An object whose item is cut behind its pickle: its value is written again, or it is lost. The cut item is not copied.
rm -rf save && cp -r "$data/dense_tp2/iter_0000007" save
truncate -s 3000 save/__0_1.distcp
expect 0 repair save -o mended
expect 1 verify mended --json
jq -e '.findings != [] and all(.findings[]; .kind == "gap")' out >/dev/null || fail "the repaired save has a damaged item"
rm -rf mended

# Common data as an item: a list of one dict, or here of none.
rm -rf save && expect 0 convert "$data/dense/iter_0000007" -o save --to megatron-dist
python3 - <<'P'
import struct, zlib
content = open("save/__0_0.distcp", "rb").read()
begin = content.index(b"\x80\x02]q\x00}q\x01(X\x04\x00\x00\x00args")
old = content[begin:content.index(b"uua.", begin) + 4]
new = old[:-2] + b"0."  # POP in the place of APPEND.
crcs = [struct.pack("<I", zlib.crc32(each)) for each in (old, new)]
open("save/__0_0.distcp", "wb").write(content.replace(old, new).replace(*crcs))
P
expect 4 gather save -o x.pt
holds err "save/__0_0.distcp: object 'common_state/shard_0_1': cannot read the pickled common data: it is not a list of one dict"
expect 1 verify save
expect 0 repair save -o mended
expect 1 verify mended
holds out "a repair could not recover it"

for file in __0_0.distcp __0_1.distcp __1_0.distcp __1_1.distcp; do
  damaged 1 missing_file $file "rm $file"
  damaged 1 truncated $file "f=$file; $half"
  damaged 1 truncated $file ": >$file"
  damaged 1 truncated $file "cp common.pt $file"
done
damaged 1 bad_header __0_0.distcp "$other/__0_0.distcp ."  # Mixed saves.
damaged 1 truncated __0_0.distcp 'mv __0_0.distcp x && mv __1_0.distcp __0_0.distcp && mv x __1_0.distcp'
damaged 0 extra_file __7_0.distcp 'cp __0_0.distcp __7_0.distcp'
damaged 0 none '' 'echo {} >tokenizer.json'

# Without metadata.json, or with a wrong one, the folder is dcp's.
for file in rm ': >' 'echo "{\"sharded_back" >' "echo '{\"sharded_backend\": \"zarr\"}' >"; do
  damaged 0 none '' "$file metadata.json"
  expect 0 inspect save --json
  [ "$(jq -r .format out)" = dcp ] || fail "not read as dcp after: $file metadata.json"
done

damaged 1 bad_header integrity.json "echo '{\"algorithm\": \"sha256\", \"fil' >integrity.json"
damaged 1 bad_header integrity.json "echo '{\"algorithm\": \"sha256\", \"files\": {\"common.pt\": \"00\"}}' >integrity.json"
damaged 1 hash_mismatch common.pt "echo '{\"algorithm\": \"sha256\", \"files\": {\"common.pt\": \"$(printf '0%.0s' {1..64})\"}}' >integrity.json"

# The run's file names an iteration that was removed.
cp -r "$data/dense" run
echo 99 >run/latest_checkpointed_iteration.txt
expect 3 gather run -o rest.pt
holds err "run/iter_0000099: the iteration that latest_checkpointed_iteration.txt names is missing"
holds err "the last iteration in the folder is iter_0000007"
holds err "name run/iter_0000007 as the source"
