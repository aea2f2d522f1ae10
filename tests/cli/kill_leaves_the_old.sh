#!/usr/bin/env bash
# kill -9 leaves DST unchanged; the next run removes the leftovers of the killed one.
. "$(dirname "$0")/common.sh"
model m.safetensors $((256 << 20))
mkdir target
echo old >target/x.safetensors

"$SHARDCTL" gather m.safetensors -o target/x.safetensors --force -j 1 --max-memory 1MiB 2>err &
pid=$!
while ! ls -A target | grep -q shardctl-; do kill -0 $pid 2>/dev/null || break; done
kill -9 $pid 2>/dev/null || fail "it ended before the kill"
wait $pid 2>/dev/null || true
[ "$(cat target/x.safetensors)" = old ] || fail "the old one is gone"
expect 0 gather m.safetensors -o target/x.safetensors --force --no-fsync
[ "$(ls -A target)" = x.safetensors ] || fail "something stayed: $(ls -A target)"
cmp -s <("$SHARDCTL" digest m.safetensors) <("$SHARDCTL" digest target/x.safetensors) || fail "another content"
