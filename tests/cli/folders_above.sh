# A folder above a checkpoint is refused with the line that reads the checkpoint, and that line works.
. "$(dirname "$0")/common.sh"
golden=$SHARD_DATA/golden/2.11.0

# run_hint NUMBER: runs that line of the hint, as a shell does; its output is in the file out.
run_hint() {
  local line
  line=$(sed -n 's/^  hint: //p' err | sed 's/, or /\n/g' | sed -n "$1p")
  [ -n "$line" ] || fail "there is no line $1 in the hint"
  PATH=$(dirname "$SHARDCTL"):$PATH bash -c "$line" >out 2>err.line || { cat err.line >&2; fail "$line"; }
}

mkdir -p "my run/checkpoint-20"
cp -r "$golden/dcp_plain_r2" "my run/checkpoint-20/pytorch_model_fsdp_0"
cp -r "$golden/dcp_plain_r2" "my run/checkpoint-20/optimizer_0"
expect 4 digest "my run/checkpoint-20"
holds err "is not a checkpoint in any known format"
holds err "hint: shardctl digest 'my run/checkpoint-20/pytorch_model_fsdp_0', or shardctl digest 'my run/checkpoint-20/optimizer_0'"
run_hint 1
mv out of_hint
expect 0 digest "$golden/dcp_plain_r2"
cmp out of_hint || fail "the line reads something else"
expect 4 digest "my run"
run_hint 2

# verl's output: sets of files, each of all ranks.
mkdir -p "my run/global_step_5/actor"
for rank in 0 1; do
  for kind in model optim; do
    cp "$golden/ranks_dtensor_r2/model_world_size_2_rank_$rank.pt" "my run/global_step_5/actor/${kind}_world_size_2_rank_$rank.pt"
  done
done
expect 4 gather "my run/global_step_5" -o whole.safetensors
holds err "shardctl gather 'my run/global_step_5/actor/'model_world_size_2_rank_*.pt -o whole.safetensors"
run_hint 1
expect 0 diff whole.safetensors "$golden/ranks_dtensor_r2"

# --if-changed identifies all files of the folder. It does not follow links to the folders that contain them.
mkdir links
model links/m.safetensors 12288
for i in 1 2 3 4; do ln -s . links/again$i; done
for again in "wrote" "is up to date"; do
  timeout 60 "$SHARDCTL" gather links -o links.pt --if-changed >out 2>err || fail "links to the folder itself"
  holds err "$again"
done
