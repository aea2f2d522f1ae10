#!/usr/bin/env bash
# cat prints a tensor, a slice or an object, in each form, from every format; and stops quietly when the pipe closes.
. "$(dirname "$0")/common.sh"
demo="$SHARD_DATA/demo/ckpt"
name=model.embed.weight

expect 0 cat "$demo" "$name[48:,0:4]"
[ "$(wc -l <out)" = 2 ] || fail "not one line a row"
[ "$(head -n 1 out | wc -w)" = 4 ] || fail "not four columns"
expect 0 cat "$demo" $name --format raw
cp out whole
[ "$(wc -c <whole)" = 1600 ] || fail "not the bytes of 50 x 16 bfloat16"
expect 0 cat "$demo" "$name[10:20]" --format raw
cmp -s out <(tail -c +321 whole | head -c 320) || fail "rows 10 to 20 differ from those of the whole"
expect 0 cat "$demo" step
[ "$(wc -l <out)" = 1 ] || fail "an object is one line"
expect 0 cat "$demo" step --json
[ "$(python3 -c 'import json; print(json.load(open("out"))["schema"])')" = shardctl.cat/1 ] || fail "schema"
expect 0 cat "$demo" "$name[0]" --json
[ "$(python3 -c 'import json; d = json.load(open("out")); print(d["shape"], len(d["values"]))')" = "[16] 16" ] || fail "values"

expect 0 gather "$demo" -o whole.pt
expect 0 gather "$demo" -o whole.safetensors --objects drop
for each in whole.pt whole.safetensors; do
  expect 0 cat $each $name --format raw
  cmp -s out whole || fail "the bytes in $each differ"
done

python3 - <<'END' || fail "no record to damage"
import zipfile
entry = next(each for each in zipfile.ZipFile("whole.pt").infolist() if "/data/" in each.filename and each.file_size == 1600)
with open("whole.pt", "r+b") as file:
    file.seek(entry.header_offset + 26)
    name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
    file.seek(entry.header_offset + 30 + name + extra)
    first = file.read(1)[0]
    file.seek(-1, 1)
    file.write(bytes([first ^ 1]))
END
expect 4 cat whole.pt $name --json
[ "$(python3 -c 'import json; print(json.load(open("out"))["schema"])')" = shardctl.error/1 ] || fail "not only an error"

expect 8 cat "$demo" $name --format npy
line=$(sed -n 's/^  hint: shardctl //p' err)
eval "\"\$SHARDCTL\" $line" >out 2>/dev/null || fail "the hinted line does not work: $line"
[ "$(head -c 6 out | tail -c 5)" = NUMPY ] || fail "no .npy"
expect 3 cat "$demo" model.embed.wieght
holds err "did you mean 'model.embed.weight'?"
expect 3 cat "$demo" model.embed
holds err "such as 'model.embed.weight'"
expect 2 cat "$demo" "$name[::2]"
expect 2 cat "$demo" "$name[50]"
expect 2 cat "$demo"
expect 2 cat "$demo" step --format raw

# If ranks differ, the hint shows the value of one.
ranks="$SHARD_DATA/golden/2.11.0/ranks_differ_r2"
for source in "$ranks" "$ranks/rank_1.pt $ranks/rank_0.pt"; do
  expect 4 cat $source rng
  line=$(sed -n 's/^  hint: shardctl //p' err)
  eval "\"\$SHARDCTL\" $line" >out 2>/dev/null || fail "the hinted line does not work: $line"
  [ "$(wc -l <out)" = 4 ] || fail "not the value"
done
# A format that does not fit is replaced, not given twice.
python3 - <<'P'
import json
header = json.dumps({"f4": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}).encode()
open("f4.safetensors", "wb").write(len(header).to_bytes(8, "little") + header + b"xy")
P
for format in "--format npy" "--format=npy"; do
  expect 8 cat f4.safetensors f4 $format
  holds err "hint: shardctl cat f4.safetensors f4 --format raw"
done

model large.safetensors $((64 << 20))
"$SHARDCTL" cat large.safetensors w 2>err | head -n 1 >out
[ "${PIPESTATUS[0]}" = 0 ] || fail "a closed pipe is exit ${PIPESTATUS[0]}"
is_empty err

# Elements that do not match their checksum are damage, in any part of the file.
cp "$SHARD_DATA/torch/state.pt" flipped.pt
printf '\xff' | dd of=flipped.pt bs=1 seek=1346 conv=notrunc status=none
expect 4 cat flipped.pt base
holds err "flipped.pt"
