#!/usr/bin/env bash
# -h, --help, help and help VERB work at any position; every verb's help has examples and exit codes.
. "$(dirname "$0")/common.sh"

expect 0 --help
holds out "Usage: shardctl"
cp out general
holds out "completion  print a script"
holds out "7    launch or communication failure"
expect 0 help
cmp -s out general || fail "help and --help differ"
for verb in inspect split gather reshard convert diff digest env version; do
  expect 0 help $verb
  holds out "Examples:"
  holds out "Exit codes:"
  cp out text
  expect 0 $verb some --unknown thing --help
  cmp -s out text || fail "$verb --help and help $verb differ"
done
expect 0 help gather
holds out "7    launch or communication failure"
expect 0 help version
lacks out "launch or communication"
expect 2 helpp
holds err "did you mean 'help'?"
code=0
"$SHARDCTL" >out 2>err || code=$?
[ $code = 2 ] || fail "exit $code without arguments"
is_empty out
holds err "Usage: shardctl"
