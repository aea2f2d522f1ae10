#!/usr/bin/env bash
# Content that a target cannot store is noted in it if possible; otherwise a warning reports it.
. "$(dirname "$0")/common.sh"
state="$SHARD_DATA/torch/state.pt"

expect 0 inspect "$state" --json
tie=$(python3 -c 'import json
for t in json.load(open("out"))["tensors"]:
    if t["alias_of"]: print(json.dumps({t["name"]: t["alias_of"]}))' | head -n 1)
[ -n "$tie" ] || fail "the golden file has an alias"
expect 0 convert "$state" -o tied.safetensors --objects drop
expect 0 inspect tied.safetensors --json
python3 -c 'import json, sys
note = json.loads(json.load(open("out"))["metadata"]["shardctl.aliases"])
assert json.loads(sys.argv[1]).items() <= note.items(), note' "$tie" || fail "the note of the alias"
expect 0 convert tied.safetensors -o renamed.safetensors --add-prefix model.
expect 0 inspect renamed.safetensors --json
lacks out shardctl.aliases
expect 0 convert "$state" -o untied --to dcp --objects drop
holds err "stored as a separate copy"
expect 0 convert "$state" -o tied.pt --objects drop
lacks err "separate cop"

mkdir folder
expect 0 split tied.safetensors -o folder/ckpt --ranks 2
echo {} >folder/ckpt/config.json
expect 0 gather folder/ckpt -o g.safetensors
holds err "other files of the folder are not part of the checkpoint, and are not copied: 'config.json'"

# The metadata without which Lightning does not load a DCP folder are copied to one.
expect 0 split tied.safetensors -o lightning --ranks 2
echo metadata >lightning/meta.pt
echo {} >lightning/config.json
for options in "--ranks 3" "--ranks 3 --local-ranks 2" "--shards 2 --checksum xxh3"; do
    expect 0 reshard lightning -o resharded --force $options
    holds err "are not copied: 'config.json'"
    cmp lightning/meta.pt resharded/meta.pt || fail "no copy of meta.pt"
    expect 0 verify resharded
done
expect 0 average lightning resharded -o mean --exclude scalar
holds err "are not copied: 'config.json'"
cmp lightning/meta.pt mean/meta.pt || fail "no copy of meta.pt"
expect 0 gather lightning -o l.pt
holds err "are not copied: 'config.json', 'meta.pt'"
ln -sf absent lightning/meta.pt
expect 0 reshard lightning -o resharded --force --ranks 3

# The folder of a run, whose files are in the folder that it names.
for run in deepspeed/stage2_robin deepspeed/universal_of_stage1 megatron/dense megatron_legacy/dense; do
    expect 0 gather "$SHARD_DATA/$run" -o run.pt --force --objects drop
    lacks err "other files"
done
