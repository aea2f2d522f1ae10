#!/usr/bin/env bash
# inspect shows the sharding of each tensor and its ranks, for people and for programs.
. "$(dirname "$0")/common.sh"
demo="$SHARD_DATA/demo/ckpt"

expect 0 inspect "$demo"
holds out "8 S(0) over 4 ranks"
holds out "S(0) over 4 ranks (13, 13, 13, 11)"
expect 0 gather "$demo" -o whole.pt
expect 0 split whole.pt -o mesh --mesh dp=2,tp=2 --place '**.up.weight=R,S(1)' --place '**=S(0),R' --to torch-ranks
expect 0 inspect mesh
holds out "dp=2 tp=2: R, S(1)"
[ "$(grep -c $'\t' out)" = 11 ] || fail "not a header line, and one line per tensor and object"
expect 0 inspect mesh --json
python3 - <<'P' || fail "the document"
import json
document = json.load(open("out"))
assert document["meshes"] == [{"axes": [{"name": "dp", "size": 2}, {"name": "tp", "size": 2}], "ranks": [0, 1, 2, 3]}]
tensors = {tensor["name"]: tensor for tensor in document["tensors"]}
assert tensors["model.layers.0.up.weight"]["placements"] == ["R", "S(1)"]
assert tensors["model.layers.0.up.weight"]["mesh"] == 0
assert len(tensors["model.layers.0.up.weight"]["chunks"]) == 4
P
expect 0 inspect mesh -v --include model.norm.weight
holds out "[0:8]	rank 0	rank-00000-of-00004.pt	bytes "
expect 0 split whole.pt -o grid --mesh a=2,b=2 --place '**.weight=S(0),S(1)' --include '**.weight'
expect 0 inspect grid
holds out "2 x 2 grid (dims 0, 1), ranks 0-3"
