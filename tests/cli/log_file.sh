#!/usr/bin/env bash
# --log-file accepts a regular file, new or not; anything else is refused at once. It contains the same text as stderr,
# even with --quiet, and every line, however the run ends.
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

# A file that the command reads is no log, under any of its names.
cp m.safetensors before
ln m.safetensors hard
for log in m.safetensors hard; do
  expect 5 gather m.safetensors -o whole.safetensors --log-file $log
  holds err "$log: cannot write the log: the file is read by this command"
done
cmp m.safetensors before || fail "the source was changed"
# A usage error comes before that check.
for option in "--nonsense" "--to nothing -o x --bogus" "--layout= "; do
  expect 2 gather m.safetensors $option --log-file m.safetensors
  expect 2 gather --log-file=m.safetensors $option m.safetensors
done
cmp m.safetensors before || fail "a usage error was appended to the source"
expect 2 gather m.safetensors --log-file -q -o whole.safetensors
[ ! -e -q ] || fail "a log with the name of an option was begun"
expect 2 gather m.safetensors --nonsense --log-file usage
grep -q "error unknown option --nonsense" usage || fail "a usage error is not in the log"
# The same holds for folders that are read, and for links to their files.
mkdir shards reference && cp m.safetensors shards && echo '{}' >reference/config.json
ln shards/m.safetensors linked
for log in shards/m.safetensors shards/new linked; do
  expect 5 gather shards -o whole.safetensors --log-file $log
  holds err "$log: cannot write the log: it is in a folder that this command reads"
done
expect 5 gather m.safetensors -o whole.safetensors --map hf-v5 --hf-ref reference --log-file reference/config.json
holds err "cannot write the log"
[ "$(ls shards)" = m.safetensors ] || fail "the log was begun in the source: $(ls shards)"
cmp shards/m.safetensors before && [ "$(cat reference/config.json)" = '{}' ] || fail "a log was appended to an input"

# Warnings, errors with their facts, and the final figures, even if they are not printed.
expect 3 inspect absent --log-file told -q
grep -q "error .*absent" told || fail "an error is not in the log: $(cat told)"
"$SHARDCTL" split m.safetensors -o parts --ranks 2 -q
expect 0 gather parts -o whole.safetensors --log-file told -q
is_empty err
grep -Eq "info .*gather [0-9.]+ .* in [0-9.]+ s, .*/s" told || fail "the log lacks the figures: $(cat told)"
echo '{}' >parts/config.json
expect 0 gather parts -o whole.safetensors --log-file told -q --force
grep -q "warning .*config.json" told || fail "a warning is not in the log: $(cat told)"

# Nothing waits in a buffer: not for SIGKILL, not for SIGTERM.
model large.safetensors $((256 << 20))
for pair in KILL:137 TERM:143; do
  rm -rf target && mkdir target
  "$SHARDCTL" gather large.safetensors -o target/x.safetensors -j 1 --max-memory 1MiB --log-file ${pair%:*} 2>err &
  pid=$!
  while ! ls -A target | grep -q shardctl-; do kill -0 $pid 2>/dev/null || break; done
  kill -${pair%:*} $pid 2>/dev/null || fail "it ended before ${pair%:*}"
  code=0
  wait $pid || code=$?
  [ $code = ${pair#*:} ] || fail "exit $code after ${pair%:*}"
  grep -q "plan: 2 tensors" ${pair%:*} || fail "lines are lost by ${pair%:*}: $(cat ${pair%:*})"
done
grep -q "error .*interrupted" TERM || fail "the end is not in the log: $(cat TERM)"

# Lines that the disk cannot store are counted; the run continues.
code=0
( ulimit -f 0; "$SHARDCTL" inspect m.safetensors --log-file full 2>&1 ) | cat >out || code=$?
[ $code = 0 ] || fail "a full log ends the run: exit $code"
grep -Eq "warning: cannot write [0-9]+ lines? to the log full" out || fail "lost lines are not told of: $(cat out)"
