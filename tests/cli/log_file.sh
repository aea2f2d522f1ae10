#!/usr/bin/env bash
# --log-file takes a regular file, new or not; anything else is refused at once.
. "$(dirname "$0")/common.sh"
model m.safetensors 4096
mkfifo fifo
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
mkdir folder
for log in fifo socket folder /dev/null; do
  code=0
  timeout 10 "$SHARDCTL" inspect m.safetensors --log-file "$log" >out 2>err || code=$?
  [ $code = 6 ] || fail "--log-file $log: exit $code, not 6"
  holds err "cannot write the log"
  is_empty out
done
expect 6 inspect m.safetensors --log-file absent/log
for run in 1 2; do expect 0 inspect m.safetensors --log-file log; done
[ "$(grep -c "opened m.safetensors" log)" = 2 ] || fail "the log is not appended to"
ln -s log link
expect 0 inspect m.safetensors --log-file link
[ "$(grep -c "opened m.safetensors" log)" = 3 ] || fail "a link to a log is not followed"
