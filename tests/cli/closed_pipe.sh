#!/usr/bin/env bash
# A reader that closes the pipe is not a failure, nor is a slow one of a pipe that does not block; a full disk behind stdout
# is one. Files do not take the place of closed streams.
. "$(dirname "$0")/common.sh"

names=$(seq 1 20000 | sed 's/.*/"tensor.&":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}/' | paste -sd,)
header="{$names}"
{ little_endian ${#header} && printf %s "$header"; } >many.safetensors
set +e
"$SHARDCTL" inspect many.safetensors 2>err | head -n 1 >out
code=${PIPESTATUS[0]}
set -e
[ "$code" = 0 ] || fail "exit $code"
is_empty err
[ ! -e /dev/full ] || {
  code=0
  "$SHARDCTL" inspect many.safetensors >/dev/full 2>err || code=$?
  [ "$code" = 6 ] || fail "exit $code on a full disk"
  holds err "cannot write to standard output"
}

# The reader may have set the pipe to O_NONBLOCK, as programs with event loops do.
"$SHARDCTL" inspect many.safetensors >all
python3 - "$SHARDCTL" >slow <<'END' || fail "a pipe that does not block"
import os, subprocess, sys, time
reading, writing = os.pipe()
os.set_blocking(writing, False)
process = subprocess.Popen([sys.argv[1], "inspect", "many.safetensors"], stdout=writing)
os.close(writing)
time.sleep(0.5)  # Longer than it takes to fill the pipe.
with os.fdopen(reading, "rb") as pipe:
    sys.stdout.buffer.write(pipe.read())
sys.exit(process.wait())
END
cmp all slow || fail "lines are missing"

# No file of the job gets the number of a closed stream, and with it what is printed.
model m.safetensors 4096
for closed in '>&-' '2>&-' '>&- 2>&-' '<&- >&- 2>&-'; do
  rm -f log x.safetensors out err
  code=0
  eval "\"$SHARDCTL\" gather m.safetensors -o x.safetensors --json -v --log-file log >out 2>err $closed" || code=$?
  [ "$code" = 0 ] || fail "$closed: exit $code"
  lacks log shardctl.result
  lacks log "shardctl: "
  expect 0 diff m.safetensors x.safetensors
done
code=0
"$SHARDCTL" inspect m.safetensors >&- 2>err || code=$?
[ "$code" = 6 ] || fail "exit $code without stdout"
holds err "cannot write to standard output"
