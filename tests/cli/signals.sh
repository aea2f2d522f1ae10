#!/usr/bin/env bash
# SIGTERM, SIGINT and SIGHUP end a copy with 143, 130 and 129; DST is unchanged, without leftovers beside it.
. "$(dirname "$0")/common.sh"
model m.safetensors $((256 << 20))
mkdir target
echo old >target/x.safetensors

for pair in TERM:143 INT:130 HUP:129; do
  signal=${pair%:*} wanted=${pair#*:}
  # A script's background jobs ignore SIGINT; the program waits for the signal all the same.
  "$SHARDCTL" gather m.safetensors -o target/x.safetensors --force -j 1 --max-memory 1MiB 2>err &
  pid=$!
  while ! ls -A target | grep -q shardctl-; do
    kill -0 $pid 2>/dev/null || break
  done
  kill -$signal $pid 2>/dev/null || fail "it ended before $signal"
  code=0
  wait $pid || code=$?
  [ "$code" = "$wanted" ] || fail "exit $code after $signal"
  [ "$(cat target/x.safetensors)" = old ] || fail "the old one is gone"
  [ "$(ls -A target)" = x.safetensors ] || fail "something stayed: $(ls -A target)"
done

# nohup ignores SIGHUP.
(trap '' HUP && exec "$SHARDCTL" gather m.safetensors -o target/x.safetensors --force -j 1 --max-memory 1MiB) 2>err &
pid=$!
while ! ls -A target | grep -q shardctl-; do
  kill -0 $pid 2>/dev/null || break
done
kill -HUP $pid 2>/dev/null || fail "it ended before HUP"
wait $pid || fail "exit $? after HUP"
expect 0 diff m.safetensors target/x.safetensors

# Terminals and launchers send a signal to all processes of a job. The parser of HDF5 files leaves it to the program.
names=$(seq 1 20000 | sed 's/.*/"tensor.&":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}/' | paste -sd,)
header="{$names}"
{ little_endian ${#header} && printf %s "$header"; } >many.safetensors
# The plug-in is installed, and can start its parser (which qemu-user does not support).
if "$SHARDCTL" convert many.safetensors -o many.h5 -q 2>/dev/null && "$SHARDCTL" inspect many.h5 >/dev/null 2>&1; then
  for signal in INT TERM HUP; do
    "$SHARDCTL" gather many.h5 -o made.safetensors --force -q 2>err &
    pid=$! parser=
    while [ -z "$parser" ] && kill -0 $pid 2>/dev/null; do
      parser=$(cat /proc/$pid/task/*/children 2>/dev/null) || true
    done
    kill -$signal $parser 2>/dev/null || true
    wait $pid || fail "exit $? after $signal to the parser"
  done
fi
