#!/usr/bin/env bash
# scripts/examples/nightly exports new checkpoints, reports damaged ones, and may run again, at once and after a kill.
# Environment: SHARD_NIGHTLY is the script.
. "$(dirname "$0")/common.sh"
golden=$SHARD_DATA/golden/2.11.0
export NIGHTLY_MINUTES=0

# nightly CODE [ARGUMENTS...]: its lines are in the file out.
nightly() {
  local wanted=$1 code=0
  shift
  [ $# -gt 0 ] || set -- runs exported
  "$SHARD_NIGHTLY" "$@" >out 2>err || code=$?
  [ "$code" = "$wanted" ] || fail "nightly: exit $code, not $wanted"
}
# is EXPRESSION: true for the array of all lines.
is() { jq -es "$1" out >/dev/null || fail "not so: $1"; }
results() { jq -S 'select(.state) | del(.state)' "$1"; }
state_of() { jq -r "select(.checkpoint == \"$1\").state" out; }

mkdir -p "runs/with spaces/[x]/checkpoint-5" runs/deepspeed runs/verl/global_step_5/actor
cp "$SHARD_DATA"/demo/ckpt/{.metadata,*} "runs/with spaces/[x]/checkpoint-5"
cp -r "$SHARD_DATA/deepspeed/stage1" runs/deepspeed/global_step2
for rank in 0 1; do
  cp "$golden/ranks_dtensor_r2/model_world_size_2_rank_$rank.pt" runs/verl/global_step_5/actor
  cp "$golden/ranks_dtensor_r2/model_world_size_2_rank_$rank.pt" "runs/verl/global_step_5/actor/optim_world_size_2_rank_$rank.pt"
done
cp "$SHARD_DATA/torch/state.pt" "runs/-best model.ckpt"

# Checkpoints younger than the given minutes are skipped.
NIGHTLY_MINUTES=5 nightly 0
is 'last == {schema: "nightly.summary/1", checkpoints: 4, exported: 0, unchanged: 0, failed: 0, busy: 0, young: 4}'
[ -z "$(find exported -type f ! -name '*.lock')" ] || fail "something was written"

nightly 0
is 'last.exported == 4 and last.checkpoints == 4'
while IFS=$'\t' read -r output digest; do
  expect 0 digest "$output" --json
  [ "$(jq -r .checkpoint out)" = "$digest" ] || fail "$output has another digest"
done < <(jq -r 'select(.state) | [.output, .digest] | @tsv' out)
nightly 0
is 'last.unchanged == 4'
results out >wanted

# A different kind of damage in each of two checkpoints, one of which was exported before: both are reported, and its
# output stays.
cp -r "$SHARD_DATA/demo/ckpt" runs/checkpoint-6
truncate -s 9000 runs/checkpoint-6/__2_0.distcp
printf X | dd of="runs/-best model.ckpt" bs=1 seek=$(($(stat -c %s "runs/-best model.ckpt") / 2)) conv=notrunc status=none
cp -r "$SHARD_DATA/demo/ckpt" runs/checkpoint-7
nightly 1
is 'last.failed == 2 and last.unchanged == 3 and last.exported == 1'
is 'map(select(.checkpoint == "checkpoint-6")) | .[0] | .step == "plan" and .code == 4 and .hint == "fetch it again"'
is 'map(select(.checkpoint == "-best model.ckpt")) | .[0] | .step == "verify" and .code == 1 and (.message | startswith("-best model.ckpt: zip: record"))'
[ -e "exported/-best model.ckpt/model.safetensors" ] || fail "the older output is gone"
[ ! -e exported/checkpoint-6 ] || fail "something of a damaged checkpoint was written"
cp "$SHARD_DATA/torch/state.pt" "runs/-best model.ckpt"
rm -r runs/checkpoint-6 runs/checkpoint-7

# A source that changed is exported once more.
cp "$SHARD_DATA/torch/nested.pt" "runs/-best model.ckpt"
nightly 0
[ "$(state_of "-best model.ckpt")" = exported ] || fail "what changed was not exported"
! results out | cmp -s - wanted || fail "another content has the same results"
cp "$SHARD_DATA/torch/state.pt" "runs/-best model.ckpt"

# Killed at any step, before and after shardctl's work: the next run does the rest, and its lines are the same.
cat >killer <<'EOF'
#!/usr/bin/env bash
step=$1
[[ "$*" != *--dry-run* ]] || step=plan
[ "$step" != "$KILL_BEFORE" ] || { kill -9 $PPID && exit 1; }
"$REAL" "$@"
[ "$step" != "$KILL_AFTER" ] || kill -9 $PPID
EOF
chmod +x killer
export NIGHTLY_NAMES=checkpoint-5
nightly 0
results out >wanted
for kill in BEFORE=verify BEFORE=export AFTER=export AFTER=digest; do
  rm -rf exported
  export KILL_BEFORE=none KILL_AFTER=none REAL=$SHARDCTL
  export "KILL_$kill"
  SHARDCTL=$PWD/killer nightly 137
  ! grep -q summary out || fail "a run that was killed has a summary"
  nightly 0
  results out | cmp - wanted || fail "$kill: other results"
  [ -z "$(find exported -name '.*shardctl-*')" ] || fail "$kill: something half stayed"
done
unset NIGHTLY_NAMES

# SIGTERM reaches shardctl, and ends the run with 143.
printf '%s\n' '#!/usr/bin/env bash' 'trap "touch told; exit 143" TERM' 'touch begun' 'while :; do sleep 0.05; done' >sleeper
chmod +x sleeper
SHARDCTL=$PWD/sleeper "$SHARD_NIGHTLY" runs other >out &
pid=$!
while [ ! -e begun ]; do sleep 0.05; done
kill -TERM $pid
code=0
wait $pid || code=$?
[ "$code" = 143 ] && [ -e told ] && [ ! -s out ] || fail "SIGTERM: exit $code"

# Runs at the same time share the work: each checkpoint is written by one of them.
rm -rf exported
for i in 1 2 3; do "$SHARD_NIGHTLY" runs exported >"out.$i" 2>/dev/null & done
wait
cat out.? >out
is 'map(select(.state == "exported")) | length == 4'
is 'map(select(.state == "failed")) == []'
exec {lock}<"exported/.nightly/$(printf %s "-best model.ckpt" | sha256sum | cut -c1-64).lock"
flock "$lock"
nightly 0
[ "$(state_of "-best model.ckpt")" = busy ] && is 'last.unchanged == 3' || fail "a lock was not respected"
exec {lock}<&-

# gather: every tensor under its name. The options of a file are only for the verb.
printf 'shards = 2\nobjects = "drop"\n' >options.toml
NIGHTLY_VERB=gather NIGHTLY_NAMES='nothing:*-5' NIGHTLY_CONFIG=options.toml nightly 0 runs gathered
is 'last.exported == 1 and last.checkpoints == 1'
[ -e "gathered/with spaces/[x]/checkpoint-5/model-00002-of-00002.safetensors" ] || fail "the options were not used"
digest=$(jq -r .digest out | head -n 1)
expect 0 digest "runs/with spaces/[x]/checkpoint-5" --json
[ "$(jq -r .checkpoint out)" = "$digest" ] || fail "gathered has another digest"

# No name ends the run, adds a separate line, or causes a different checkpoint to be verified.
is_plain() { ! grep -q '[^ -~]' out || fail "a name's characters are printed as they are"; }
checkpoint() { mkdir -p -- "${1%/*}" && cp -r "$SHARD_DATA/demo/ckpt" "$1"; }
long=$(printf 'x%.0s' {1..247}).ckpt
hostile=$'step_2\e[31m\n{"state":"failed"}\n'
damaged=$'step_1\n'
for name in a.ckpt a.ckpt.lock/step_1 b.ckpt "$long" "$hostile" $'below\n/step_3' $'step_4\xff' 'step_[ab]' .nightly/step_5 blocked/step_6 z.ckpt; do
  checkpoint "names/$name"
done
cp "$SHARD_DATA/torch/state.pt" names/step_1
cp "$SHARD_DATA/torch/state.pt" "names/$damaged"
printf X | dd of="names/$damaged" bs=1 seek=$(($(stat -c %s names/step_1) / 2)) conv=notrunc status=none
mkdir named && touch named/blocked
nightly 1 names named
is_plain
is 'last.checkpoints == 13 and length == 14'
is 'map(select(.state == "failed") | [.checkpoint, .step]) | sort
  == [[".nightly/step_5", "lock"], ["blocked/step_6", "lock"], ["step_1\n", "verify"], ["step_4\ufffd", "verify"]]'
is 'map(select(.checkpoint == "blocked/step_6"))[0].message | contains("named/blocked")'
nightly 1 names named
is 'last.unchanged == 9 and last.failed == 4'
is 'map(select(.state == "unchanged") | .digest) | unique | length == 2'

# Links inside FOLDER are followed. Links out of it fail their checkpoint, because the script may read more than their
# author.
mkdir private linked
echo '{"secret": 1}' >private/tokenizer.json
for path in private/ckpt linked/{checkpoint-{1,2,3,4,5},beside/checkpoint-1,folder/checkpoint-1}; do
  checkpoint "$path"
  echo '{}' >"$path/config.json"
done
echo '{"shared": 1}' >linked/tokenizer.json
ln -s ../tokenizer.json linked/checkpoint-2/tokenizer.json
ln -s "$PWD/private/tokenizer.json" linked/checkpoint-3/tokenizer.json
ln -s ../checkpoint-3/tokenizer.json linked/checkpoint-4/tokenizer.json
mkdir linked/checkpoint-5/additional_chat_templates
ln -s ../../../private/tokenizer.json linked/checkpoint-5/additional_chat_templates/secret.jinja
rm linked/{beside,folder}/checkpoint-1/config.json
echo '{}' >private/config.json
ln -s "$PWD/private/config.json" linked/beside/config.json
ln -s "$PWD/private" linked/folder/huggingface
ln -s checkpoint-1 linked/checkpoint-6
ln -s "$PWD/private/ckpt" linked/checkpoint-7
ln -s checkpoint-8 linked/checkpoint-8
nightly 1 linked unlinked
is 'map(select(.state == "exported").checkpoint) == ["checkpoint-1", "checkpoint-2", "checkpoint-6"]'
is 'map(select(.state == "failed" and .step == "links")) | length == 6'
is 'map(select(.state == "failed" and .step != "links").checkpoint) == ["checkpoint-8"]'
is 'map(select(.checkpoint == "checkpoint-4"))[0].message | contains("checkpoint-4/tokenizer.json")'
grep -q shared unlinked/checkpoint-2/tokenizer.json || fail "a link inside was not followed"
! grep -rq secret unlinked || fail "a private file is in the output"
NIGHTLY_VERB=gather NIGHTLY_CONFIG=options.toml nightly 0 linked/beside gathered_links
is 'last.exported == 1'

# Invalid requests are exit code 2 or 3, without leftovers.
nightly 2 runs
nightly 2 runs runs/exported
nightly 3 absent none
NIGHTLY_VERB=repair nightly 2 runs none
NIGHTLY_MINUTES=soon nightly 2 runs none
SHARDCTL=$PWD/absent nightly 2 runs none
[ ! -e none ] && [ ! -e runs/exported ] || fail "a folder was made"
