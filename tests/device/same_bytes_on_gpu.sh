# Every writing verb gives the same bytes with --device cuda as without. Exits with 77 if there is no GPU.
. "$(dirname "$0")/../cli/common.sh"

"$SHARDCTL" env >env.txt
if grep -q '^devices *none' env.txt; then
  echo "skipped: $(grep '^devices' env.txt)"
  exit 77
fi

model m.safetensors $((48 << 20))
run() {
  local name=$1
  shift
  expect 0 "$@" -o "$name.cpu"
  expect 0 "$@" -o "$name.cuda" --device cuda
  diff -r "$name.cpu" "$name.cuda" || fail "$name: other bytes with --device cuda"
}
run split split m.safetensors --to torch-ranks --ranks 3 --dim 1
run reshard reshard split.cpu --ranks 5 --dim 1
run gather gather split.cpu --to safetensors
run cast convert m.safetensors --to dcp --ranks 2 --dim 1 --cast w=float32
