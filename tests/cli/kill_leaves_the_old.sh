#!/usr/bin/env bash
# kill -9 leaves DST unchanged; the next run removes the leftovers of the killed one.
. "$(dirname "$0")/common.sh"

# Only a build with test hooks can be stopped at a step.
if [ "${SHARD_TEST_HOOKS:-}" != 1 ]; then
  echo "SKIP: this shardctl was built without SHARD_TEST_HOOKS; no run can be held"
  exit 0
fi
model m.safetensors $((1 << 20))
for step in copy commit; do
  rm -rf target door
  mkdir target
  echo old >target/x.safetensors
  SHARDCTL_TEST_HOLD=$step:0:$work/door "$SHARDCTL" gather m.safetensors -o target/x.safetensors --force 2>err &
  pid=$!
  while [ ! -e door ]; do kill -0 $pid 2>/dev/null || fail "it ended before the step $step"; sleep 0.01; done
  kill -9 $pid
  wait $pid 2>/dev/null || true
  [ "$(cat target/x.safetensors)" = old ] || fail "$step: the old one is gone"
  ls -A target | grep -q shardctl- || fail "$step: the killed run has no temporary files"
  expect 0 gather m.safetensors -o target/x.safetensors --force --no-fsync
  [ "$(ls -A target)" = x.safetensors ] || fail "$step: something stayed: $(ls -A target)"
  cmp -s <("$SHARDCTL" digest m.safetensors) <("$SHARDCTL" digest target/x.safetensors) || fail "$step: another content"
done
