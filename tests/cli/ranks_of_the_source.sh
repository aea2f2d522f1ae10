#!/usr/bin/env bash
# Per-rank files: a missing rank is named, plain slices need their layout document, the kind of files is chosen by --as.
. "$(dirname "$0")/common.sh"
expect 0 gather "$SHARD_DATA/demo/ckpt" -o whole.pt

expect 0 split whole.pt -o four --ranks 4 --to torch-ranks
rm four/rank-00002-of-00004.pt
expect 3 inspect four
holds err "rank 2"
expect 0 split whole.pt -o hf --ranks 3 --to dcp-hf --objects drop
expect 0 inspect hf --ranks-expected 3
expect 4 inspect hf --ranks-expected 2
expect 2 inspect whole.pt --ranks-expected 2
expect 2 inspect hf --ranks-expected 0

expect 0 split whole.pt -o plain --ranks 2 --to torch-ranks --as plain
[ -e plain/layout.json ] || fail "no layout document"
mv plain/layout.json l.json
expect 2 gather plain --from torch-ranks -o none.pt
holds err "if each file has whole tensors, name only one"
expect 0 gather plain --from torch-ranks --layout l.json -o again.pt
expect 0 diff whole.pt again.pt
expect 2 split whole.pt -o none --ranks 2 --as plain
holds err "--to torch-ranks"
expect 2 split whole.pt -o none --ranks 2 --to torch-ranks --as tensors
expect 8 split whole.pt -o none --mesh dp=2,tp=2 --place '**=R,S(0)' --to torch-ranks --as sharded_tensor
[ ! -e none ] || fail "a refusal wrote something"
