#!/usr/bin/env bash
# -h, --help, help and help VERB work at any position; every verb's help has examples and exit codes.
. "$(dirname "$0")/common.sh"

expect 0 --help
holds out "Usage: shardctl"
cp out general
holds out "completion  print a completion script"
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
  cat -s text | cmp -s - text || fail "help $verb has two empty lines in a row"
done
expect 0 help export  # It describes only the outputs that export writes.
holds out "destination: a folder"
holds out "safetensors (default) or torch"
lacks out "--core-version"
expect 0 help split
holds out "described by 'shardctl help split --all' and the man page shardctl-split(1)"
holds out "  Model maps: --map, --to-map, --set, --hf-ref"
lacks out "--to-map NAME"
[ "$(wc -l <out)" -le 75 ] || fail "help split has $(wc -l <out) lines"
expect 0 help split --all
holds out "--to-map NAME"
cp out text
expect 0 split --help --all
cmp -s out text || fail "split --help --all and help split --all differ"
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

# With --json the same text is in a document.
for line in "" split "split --all"; do
  expect 0 help $line
  mv out text
  expect 0 help $line --json
  python3 -c 'import json, sys; sys.stdout.write(json.load(open("out"))["text"])' >text_of_json
  diff -u text text_of_json >"$work/err" || fail "help $line --json has a different text"
done
