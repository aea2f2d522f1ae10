#!/usr/bin/env bash
# A reader that closes the pipe is not a failure; a full disk behind stdout is one.
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
